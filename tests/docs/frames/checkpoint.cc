// A model of parallelize() at step 938 of its training.
#include <torch/torch.h>
#include <weft/weft.h>

using namespace weft;

int main() {
  const auto world = weft::init();
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Linear(8, 2));
  auto blocks = weft::blocks_of(net);
  blocks.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::mse_loss(y, t);
  };
  weft::Plan plan;
  plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.1), {});
  const weft::Mesh mesh(world, {{"fsdp", world.size()}});
  auto model = weft::parallelize(blocks, plan, mesh);
  const std::int64_t step = 938;
  // BLOCK
}
