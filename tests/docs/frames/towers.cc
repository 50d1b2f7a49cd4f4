// A model of two inputs.
#include <torch/torch.h>
#include <weft/weft.h>

using weft::parallel::Tensors;

int main() {
  const auto world = weft::init();
  torch::manual_seed(1);
  // BLOCK
  weft::train::Options options;
  options.epochs = 2;
  options.batch = 64;
  options.mesh = "dp=0";
  options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.01), {});
  if (weft::Trainer(task, options, world).run().steps != 32) return 1;
}
