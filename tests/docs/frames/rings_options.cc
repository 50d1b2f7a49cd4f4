// A training that its callback ends.
#include <torch/torch.h>
#include <weft/weft.h>

int main() {
  const auto world = weft::init();
  torch::nn::Linear net(1, 1);
  weft::Task task(weft::blocks_of(net), [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::mse_loss(y, t);
  });
  task.train = task.test = weft::train::samples(torch::ones({64, 1}), torch::ones({64, 1}));
  weft::train::Options options;
  options.epochs = 100;
  options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.1), {});
  // BLOCK
  const auto result = weft::Trainer(task, options, world).run();
  return result.ended_early && result.loss < 0.05 ? 0 : 1;
}
