// Workers that train on their own and exchange weights now and then, in a loop of your own.
//   weft run -n 4 local_sgd                      16 steps, then the mean of the weights
//   weft run -n 4 local_sgd diloco 20            or another strategy and period
#include <torch/torch.h>

#include <iostream>

#include "weft/weft.h"

namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const weft::Group world = weft::init();
  const weft::Strategy strategy{.name = argc > 1 ? argv[1] : "local_sgd",
                                .period = argc > 2 ? std::stol(argv[2]) : 16};
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 1));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto rule = weft::strategy::make_rule(
      strategy, {.workers = world, .world = world, .weights = net->parameters()});

  constexpr std::int64_t kSteps = 320;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 * step + world.rank()));  // own samples
    const auto input = torch::randn({32, 8}), target = input.sum(1, true).sin();
    optimizer.zero_grad();
    torch::mse_loss(net->forward(input), target).backward();
    optimizer.step();
    rule->after_step({.number = step, .lr = 3e-3});
  }

  // The model that the workers have found together.
  const torch::NoGradGuard no_grad;
  const auto& result = rule->result();
  const auto parameters = net->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(result.weights[i]);
  torch::manual_seed(1);
  const auto input = torch::randn({1000, 8});
  const auto loss = torch::mse_loss(net->forward(input), input.sum(1, true).sin()).item<float>();
  if (world.rank() == 0) {
    std::cout << weft::strategy::describe(strategy, world.size(), 641) << '\n'
              << "loss " << loss << '\n';
  }
} catch (const weft::Error& error) {
  std::cerr << "local_sgd: " << error.what() << '\n';
  return weft::exit_code(error.code());
}
