// A run with a best checkpoint, and a module of the same layers.
#include <torch/torch.h>
#include <weft/weft.h>

int main() {
  torch::nn::Linear trained(1, 1), net(1, 1);
  weft::Task task(weft::blocks_of(trained), [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::mse_loss(y, t);
  });
  task.train = task.test = weft::train::samples(torch::ones({64, 1}), torch::ones({64, 1}));
  weft::train::Options options;
  options.name = "rings";
  options.keep_best = true;
  options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.01), {});
  weft::Trainer(task, options, weft::init()).run();
  // BLOCK
  return torch::equal(net->weight, trained->weight) ? 0 : 1;
}
