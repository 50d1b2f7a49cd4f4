// A model and an optimizer.
#include <torch/torch.h>
#include <weft/weft.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).log_softmax(1); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 10))};
};
TORCH_MODULE(Net);

int main() {
  // BLOCK
  torch::nll_loss(model.forward(torch::ones({2, 4})), torch::ones({2}, torch::kLong)).backward();
  optimizer.step();
}
