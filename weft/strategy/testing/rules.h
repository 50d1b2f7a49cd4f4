// Helpers of tests for the rules: what workers reach under a rule, and by its equations. Needs
// GoogleTest and is not installed.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <mutex>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/strategy/strategy.h"

namespace weft::strategy::rules_test {

using Vectors = std::vector<at::Tensor>;  // by worker

constexpr double kLr = 0.1;

// The gradient of worker w: each pulls the weights to a point of its own.
inline at::Tensor gradient(const at::Tensor& x, int worker) {
  const at::Tensor target = torch::arange(x.numel(), torch::kDouble).mul(0.3).sin() + worker;
  return (x - target) * (torch::arange(x.numel(), torch::kDouble).remainder(3) + 1) * 0.3;
}

inline at::Tensor initial() { return torch::arange(10, torch::kDouble).cos(); }

inline at::Tensor mean_of(const Vectors& all) { return torch::stack(all).mean(0); }

// What the workers have after `steps` steps of plain SGD: weights of two shapes, and the result.
struct Outcome {
  Vectors weights;
  at::Tensor result;
};

inline Outcome train(int workers, const Strategy& strategy, int steps,
                     const std::function<void(int worker, int step, Rule&)>& look = nullptr) {
  Outcome outcome;
  outcome.weights.resize(static_cast<std::size_t>(workers));
  std::mutex lock;
  comm::replicate(workers, [&](const Group& group) {
    // Worker 0's weights are the initial ones of all.
    at::Tensor first = (initial().narrow(0, 0, 6) + group.rank()).view({2, 3});
    at::Tensor second = initial().narrow(0, 6, 4) + group.rank();
    const auto rule = make_rule(
        strategy, {.workers = group, .world = group, .weights = {first, second}, .buffers = {}});
    const auto flat = [&] { return torch::cat({first.flatten(), second}); };
    for (int step = 1; step <= steps; ++step) {
      const at::Tensor move = gradient(flat(), group.rank()) * kLr;
      first.sub_(move.narrow(0, 0, 6).view({2, 3}));
      second.sub_(move.narrow(0, 6, 4));
      const double loss = 100.0 / step;  // falls
      rule->after_step({step, kLr, loss, 1});
      if (look) {
        const std::lock_guard guard(lock);
        look(group.rank(), step, *rule);
      }
    }
    const auto& result = rule->result();
    const std::lock_guard guard(lock);
    outcome.weights[static_cast<std::size_t>(group.rank())] = flat();
    if (group.rank() == 0)
      outcome.result = torch::cat({result.weights[0].flatten(), result.weights[1]});
  });
  return outcome;
}

// The same, by a function that exchanges the vectors of all workers in place.
using Exchange = std::function<void(Vectors& x, int step)>;
inline Vectors reference(int workers, int steps, const Exchange& exchange) {
  Vectors x;
  for (int worker = 0; worker < workers; ++worker) x.push_back(initial());
  for (int step = 1; step <= steps; ++step) {
    for (int worker = 0; worker < workers; ++worker) {
      at::Tensor& mine = x[static_cast<std::size_t>(worker)];
      mine = mine - gradient(mine, worker) * kLr;
    }
    exchange(x, step);
  }
  return x;
}

inline void expect_close(const at::Tensor& a, const at::Tensor& b, double most = 1e-12) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LT((a - b).abs().max().item<double>(), most);
}

inline void expect_close(const Outcome& a, const Vectors& b) {
  ASSERT_EQ(a.weights.size(), b.size());
  for (std::size_t i = 0; i < b.size(); ++i) expect_close(a.weights[i], b[i]);
}

inline void set_all(Vectors& x, const at::Tensor& value) {
  for (at::Tensor& one : x) one = value.clone();
}

}  // namespace weft::strategy::rules_test
