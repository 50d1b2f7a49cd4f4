// Blocks with a loss, and batches that are the same on all ranks.
#include <torch/torch.h>
#include <weft/weft.h>

#include <iostream>

int main() {
  const auto world = weft::init();
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 2));
  auto blocks = weft::blocks_of(net);
  blocks.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::nn::functional::cross_entropy(y, t);
  };
  const std::vector<torch::data::Example<>> batches(3,
                                                    {torch::ones({16, 2}), torch::arange(16) % 2});
  // BLOCK
}
