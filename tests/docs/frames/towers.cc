// A model of two inputs, and its data.
#include <torch/torch.h>
#include <weft/weft.h>

using weft::parallel::Tensors;

struct TowersImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b) {
    return left(a) + right(b);
  }
  torch::nn::Linear left{register_module("left", torch::nn::Linear(3, 1))};
  torch::nn::Linear right{register_module("right", torch::nn::Linear(4, 1))};
};
TORCH_MODULE(Towers);

int main() {
  const auto world = weft::init();
  torch::manual_seed(1);
  const auto left = torch::randn({1024, 3}), right = torch::randn({1024, 4});
  const auto target = left.sum(1, true) - right.sum(1, true);
  // BLOCK
  weft::train::Options options;
  options.epochs = 2;
  options.mesh = "dp=0";
  options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.1), {});
  if (weft::Trainer(task, options, world).run().steps != 32) return 1;
}
