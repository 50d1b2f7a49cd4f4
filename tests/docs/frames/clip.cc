// A data-parallel model and its batches.
#include <torch/torch.h>
#include <weft/weft.h>

#include <vector>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).log_softmax(1); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 10))};
};
TORCH_MODULE(Net);

int main() {
  auto world = weft::init();
  auto model = weft::data_parallel(Net(), world);
  const std::vector<torch::data::Example<>> loader(2, {torch::ones({4, 4}), torch::arange(4)});
  // BLOCK
}
