// A language model of characters, data parallel, whose state is carried from one stretch of text to
// the next (truncated backpropagation through time). Each rank reads parts of the text of its own,
// in order.
//   weft run -n 2 lstm
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "weft/models.h"
#include "weft/weft.h"

namespace {

// "one two three … nine one two …": what comes next is known from the last few characters.
torch::Tensor text_of(int64_t characters) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < characters)
    text += "one two three four five six seven eight nine ";
  auto tokens = torch::empty({characters}, torch::kLong);
  for (int64_t i = 0; i < characters; ++i)
    tokens[i] =
        text[static_cast<std::size_t>(i)] == ' ' ? 26 : text[static_cast<std::size_t>(i)] - 'a';
  return tokens;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const auto world = weft::init();
  const int64_t rows = 8, length = 24, stretches = 12;  // rows over all ranks
  const auto text = text_of(rows * stretches * length + 1);
  const auto in_rows = [&](int64_t from) {
    return text.narrow(0, from, rows * stretches * length).view({rows, -1});
  };
  const int64_t mine = rows / world.size();
  const auto inputs = in_rows(0).narrow(0, world.rank() * mine, mine),
             targets = in_rows(1).narrow(0, world.rank() * mine, mine);

  auto model = weft::data_parallel(
      weft::models::Lstm(weft::models::LstmOptions{
          .vocabulary = 27, .width = 48, .hidden = 48, .layers = 2, .tied = true}),
      world);
  auto optimizer = model.optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
  double loss = 0;
  for (int epoch = 0; epoch < 16; ++epoch) {
    weft::models::LstmState state;  // zeros
    for (int64_t i = 0; i < stretches; ++i) {
      optimizer.zero_grad();
      const auto logits = model->forward(inputs.narrow(1, i * length, length), &state);
      const auto value = torch::cross_entropy_loss(logits.flatten(0, 1),
                                                   targets.narrow(1, i * length, length).flatten());
      value.backward();
      optimizer.step();
      loss = value.item<double>();
    }
    if (world.rank() == 0)
      std::cout << "epoch " << epoch + 1 << ": " << loss << " nats a character\n";
  }
  return loss < 0.2 ? 0 : 1;
}
