// A training loop of your own that survives the loss of ranks: any of them can die at any time.
//   weft run -n 3 --max-replacements 3 elastic    a new process takes the place of a lost rank
//   weft run -n 3 --min-ranks 1 elastic           the others go on without it
// The result has the same bits as without a fault, if lost ranks are replaced.
// When the job is asked to go (SIGTERM, weft stop), it saves a checkpoint. The same command then
// continues from it.
#include <torch/torch.h>

#include <csignal>
#include <iostream>

#include "weft/weft.h"

namespace nn = torch::nn;

volatile std::sig_atomic_t asked_to_go = 0;

int main() try {
  constexpr std::int64_t kSteps = 200, kBatch = 48;
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(16, 64), nn::Tanh(), nn::Dropout(0.1), nn::Linear(64, 1));
  auto model = weft::data_parallel(net);  // elastic::run() gives it a group
  auto optimizer = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  std::int64_t step = 0;

  weft::elastic::State state;  // all that a lost rank must not lose, each under its name
  state.add("model", model);
  state.add("step", step);

  weft::elastic::RunOptions options;
  options.should_stop = [] { return asked_to_go != 0; };
  options.save = [&](const weft::Group& world) {
    return weft::checkpoint::save("ckpt", state.shards(world, step), world);
  };
  options.reload = [&](const weft::Group& world) {
    const auto newest = weft::checkpoint::latest("ckpt", world);
    if (newest.folder) state.load(world, weft::checkpoint::Reader(*newest.folder));
    return step;
  };
  options.resume = true;
  std::signal(SIGTERM, [](int) { asked_to_go = 1; });

  const auto train = [&](const weft::Group& world) {
    torch::manual_seed(static_cast<std::uint64_t>(step));  // every rank draws the whole batch
    const auto input = torch::randn({kBatch, 16}), target = input.sum(1, true).sin();
    const auto mine = [&](const torch::Tensor& all) {
      return all.tensor_split(world.size())[static_cast<std::size_t>(world.rank())];
    };
    torch::mse_loss(model.forward(mine(input)), mine(target)).backward();
    optimizer.step();
    optimizer.zero_grad();
    return ++step < kSteps;  // false: this was the last step
  };
  const auto done = weft::elastic::run(state, train, options);
  if (done.stopped) return 128 + SIGTERM;

  const auto sum = net->parameters()[0].sum().item<float>();
  if (done.world.rank() == 0) std::cout << step << " steps, sum of weights " << sum << '\n';
} catch (const weft::Error& error) {
  std::cerr << "elastic: " << error.what() << '\n';
  return weft::exit_code(error.code());
}
