// A training loop over a few batches of images.
#include <torch/torch.h>
#include <weft/weft.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x.flatten(1)).log_softmax(1); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(784, 10))};
};
TORCH_MODULE(Net);

int main() {
  const std::vector<torch::data::Example<>> loader(
      3, {torch::randn({8, 1, 28, 28}), torch::arange(8)});
  // BLOCK
}
