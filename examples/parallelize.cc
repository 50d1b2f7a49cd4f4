// A GPT over any mesh: the sizes of the axes are an argument, the model knows nothing of them.
//   weft run -n 4 parallelize pp=2,tp=2
//   weft run -n 4 parallelize fsdp=2,cp=2
#include <torch/torch.h>

#include <iostream>

#include "weft/models.h"
#include "weft/weft.h"

// Rows that count by one, two or three from anywhere, modulo 31: int64 [rows, length + 1], the same
// on all ranks.
torch::Tensor rows_of(int64_t rows, int64_t length) {
  const auto start = torch::randint(31, {rows, 1}), stride = torch::randint(1, 4, {rows, 1});
  return (start + stride * torch::arange(length + 1)).remainder(31);
}

int train(const weft::Group& world, const std::string& axes) {
  const weft::Mesh mesh(world, weft::plan::parse_axes(axes));
  weft::models::GptOptions options{
      .vocabulary = 31, .layers = 4, .width = 32, .heads = 4, .sequence_length = 16};

  weft::Plan plan;
  plan.optimizer = weft::optimizer_spec(torch::optim::AdamWOptions(3e-3), {.max_grad_norm = 1.0});
  plan.micro_batches = 2;
  auto model = weft::parallelize(weft::models::gpt_blocks(options), plan, mesh);
  if (world.rank() == 0) std::cout << model.describe() << '\n';

  torch::manual_seed(1);
  double loss = 0;
  for (int step = 1; step <= 200; ++step) {
    const auto share =
        rows_of(32, 16).chunk(model.replicas())[static_cast<std::size_t>(model.replica())];
    // The mean over all replicas.
    loss = model.train_step({share.narrow(1, 0, 16)}, {share.narrow(1, 1, 16)});
    model.step();
    model.zero_grad();
    if (step % 100 == 0 && world.rank() == 0)
      std::cout << "step " << step << ": loss " << loss << '\n';
  }
  return loss < 0.5
             ? 0
             : 1;  // the first token says nothing about the second: 1.1 / 16 nats are the least
}

int main(int argc, char** argv) {
  try {
    return train(weft::init(), argc > 1 ? argv[1] : "dp=0");
  } catch (const weft::Error& error) {
    std::cerr << "parallelize: " << error.what() << '\n';
    return weft::exit_code(error.code());
  }
}
