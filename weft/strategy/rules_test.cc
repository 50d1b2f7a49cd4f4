// Each rule against its equations, written out for all workers at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/strategy.h"

namespace weft::strategy {
namespace rules_test {

using Vectors = std::vector<at::Tensor>;  // by worker

constexpr double kLr = 0.1;

// The gradient of worker w: each pulls the weights to a point of its own.
at::Tensor gradient(const at::Tensor& x, int worker) {
  const at::Tensor target = torch::arange(x.numel(), torch::kDouble).mul(0.3).sin() + worker;
  return (x - target) * (torch::arange(x.numel(), torch::kDouble).remainder(3) + 1) * 0.3;
}

at::Tensor initial() { return torch::arange(10, torch::kDouble).cos(); }

at::Tensor mean_of(const Vectors& all) { return torch::stack(all).mean(0); }

// What the workers have after `steps` steps of plain SGD: weights of two shapes, and the result.
struct Outcome {
  Vectors weights;
  at::Tensor result;
};

Outcome train(int workers, const Strategy& strategy, int steps,
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
Vectors reference(int workers, int steps, const Exchange& exchange) {
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

void expect_close(const at::Tensor& a, const at::Tensor& b, double most = 1e-12) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LT((a - b).abs().max().item<double>(), most);
}

void expect_close(const Outcome& a, const Vectors& b) {
  ASSERT_EQ(a.weights.size(), b.size());
  for (std::size_t i = 0; i < b.size(); ++i) expect_close(a.weights[i], b[i]);
}

void set_all(Vectors& x, const at::Tensor& value) {
  for (at::Tensor& one : x) one = value.clone();
}

TEST(LocalSgd, TakesTheMeanEveryPeriodSteps) {
  const auto seen = train(3, {.name = "local_sgd", .period = 4}, 10);
  const Vectors wanted = reference(3, 10, [](Vectors& x, int step) {
    if (step % 4 == 0) set_all(x, mean_of(x));
  });
  expect_close(seen, wanted);
  expect_close(seen.result, mean_of(wanted));
  EXPECT_FALSE(at::allclose(seen.weights[0], seen.weights[1]));  // two steps since the exchange
}

TEST(LocalSgd, WithPeriodOneIsSynchronousTraining) {
  const auto seen = train(4, {.name = "local_sgd", .period = 1}, 7);
  at::Tensor x = initial();
  for (int step = 0; step < 7; ++step) {
    at::Tensor sum = torch::zeros_like(x);
    for (int worker = 0; worker < 4; ++worker) sum += gradient(x, worker);
    x = x - sum / 4 * kLr;
  }
  for (const at::Tensor& mine : seen.weights) expect_close(mine, x);
}

TEST(LocalSgd, ExchangesAfterEachOfTheFirstSteps) {
  const auto seen = train(2, {.name = "local_sgd", .period = 5, .sync_steps = 3}, 9);
  expect_close(seen, reference(2, 9, [](Vectors& x, int step) {
                 if (step <= 3 || step == 8) set_all(x, mean_of(x));
               }));
}

// The loss is 100 / step: at step 8 its mean since step 4 is 100 * (1/5 + … + 1/8) / 4.
TEST(LocalSgd, ShortensThePeriodAsTheLossFalls) {
  std::vector<std::int64_t> periods;
  train(2, {.name = "local_sgd", .period = 4, .adapt_steps = 4}, 20,
        [&](int worker, int, Rule& rule) {
          if (worker == 0) periods.push_back(rule.period());
        });
  const double first = (1 + 1 / 2. + 1 / 3. + 1 / 4.) / 4,
               second = (1 / 5. + 1 / 6. + 1 / 7. + 1 / 8.) / 4;
  EXPECT_EQ(periods[3], 4);  // the first mean only sets the scale
  EXPECT_EQ(periods[7], static_cast<std::int64_t>(std::ceil(std::sqrt(second / first) * 4)));
  EXPECT_LT(periods[19], periods[7]);
}

TEST(LocalSgd, SendsChangesThroughACodecWhoseErrorIsSentLater) {
  std::vector<at::Tensor> results;
  for (const char* codec : {"none", "topk:0.3"}) {
    comm::replicate(2, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const auto rule =
          make_rule({.name = "local_sgd", .period = 2, .codec = codec},
                    {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      EXPECT_EQ(rule->state().own.empty(), std::string(codec) == "none");
      for (int step = 1; step <= 200; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()).to(torch::kFloat), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      const at::Tensor& result = rule->result().weights[0];
      if (group.rank() == 0) results.push_back(result.clone());
    });
  }
  EXPECT_FALSE(at::equal(results[0], results[1]));
  EXPECT_LT((results[0] - results[1]).abs().max().item<double>(), 0.1);
}

TEST(SlowMomentum, FollowsAlgorithm1OfThePaper) {
  const auto seen =
      train(3, {.name = "slow_momentum", .period = 3, .lr = 0.8, .momentum = 0.6}, 12);
  at::Tensor anchor = initial(), u = torch::zeros_like(anchor);
  const Vectors wanted = reference(3, 12, [&](Vectors& x, int step) {
    if (step % 3 != 0) return;
    u = 0.6 * u + (anchor - mean_of(x)) / kLr;
    anchor = anchor - 0.8 * kLr * u;
    set_all(x, anchor);
  });
  expect_close(seen, wanted);
}

TEST(SlowMomentum, WithoutMomentumIsLocalSgd) {
  expect_close(train(2, {.name = "slow_momentum", .period = 3, .lr = 1, .momentum = 0}, 9),
               train(2, {.name = "local_sgd", .period = 3}, 9).weights);
}

TEST(DiLoCo, StepsAsTorchsSgdWithNesterovMomentum) {
  const auto seen = train(3, {.name = "diloco", .period = 4}, 16);
  at::Tensor anchor = initial().requires_grad_();
  torch::optim::SGD outer({anchor}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  const Vectors wanted = reference(3, 16, [&](Vectors& x, int step) {
    if (step % 4 != 0) return;
    anchor.mutable_grad() = anchor.detach() - mean_of(x);
    outer.step();
    set_all(x, anchor.detach());
  });
  expect_close(seen, wanted);
}

TEST(DiLoCo, ExchangesFragmentsOneAfterTheOther) {
  std::vector<std::vector<bool>> equal;  // by step: whether the first and the second tensor are
  const Strategy strategy{.name = "diloco", .period = 4, .lr = 1, .momentum = 0, .fragments = 2};
  const auto seen = train(2, strategy, 8);
  expect_close(seen, reference(2, 8, [](Vectors& x, int step) {
                 const at::Tensor mean = mean_of(x);
                 for (at::Tensor& one : x) {
                   if (step % 4 == 2) one = torch::cat({mean.narrow(0, 0, 6), one.narrow(0, 6, 4)});
                   if (step % 4 == 0) one = torch::cat({one.narrow(0, 0, 6), mean.narrow(0, 6, 4)});
                 }
               }));
}

TEST(Easgd, FollowsEquations5And6OfThePaper) {
  const auto seen = train(4, {.name = "easgd", .period = 2, .beta = 0.8}, 11);
  at::Tensor center = initial();
  const Vectors wanted = reference(4, 11, [&](Vectors& x, int step) {
    if (step % 2 != 0) return;
    const at::Tensor mean = mean_of(x);
    for (at::Tensor& one : x) one = one - 0.8 / 4 * (one - center);
    center = 0.2 * center + 0.8 * mean;
  });
  expect_close(seen, wanted);
  expect_close(seen.result, center);
}

TEST(Downpour, WithStaleness0IsSynchronousTraining) {
  const auto seen = train(3, {.name = "downpour", .staleness = 0}, 20);
  const Vectors wanted = reference(3, 20, [](Vectors& x, int) { set_all(x, mean_of(x)); });
  for (std::size_t i = 0; i < 3; ++i) expect_close(seen.weights[i], wanted[i], 1e-10);
  expect_close(seen.result, wanted[0], 1e-10);
}

TEST(Downpour, KeepsEveryChangeThoughNobodyWaits) {
  // Gradients that do not depend on the weights: the center gets all of them, in any order.
  const int workers = 4, steps = 300;
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = torch::zeros({20'000}, torch::kDouble);  // several chunks
    const auto rule =
        make_rule({.name = "downpour"}, {.workers = group, .world = group, .weights = {x}});
    for (int step = 1; step <= steps; ++step) {
      x.add_(group.rank() + 1);
      rule->after_step({step, kLr, 0, 1});
    }
    const at::Tensor& sum = rule->result().weights[0];
    EXPECT_EQ(sum.min().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0);
    EXPECT_EQ(sum.max().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0);
  });
}

TEST(Downpour, AWorkerIsNeverFurtherAheadThanTheBound) {
  for (const std::int64_t bound : {0, 2}) {
    std::vector<std::atomic<int>> done(3);
    std::atomic<int> most{0};
    comm::replicate(3, [&](const Group& group) {
      at::Tensor x = torch::zeros({4});
      const auto rule = make_rule({.name = "downpour", .staleness = bound},
                                  {.workers = group, .world = group, .weights = {x}});
      for (int step = 1; step <= 60; ++step) {
        if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        // Before its exchange, a worker that is done `step` times has not been let ahead.
        done[static_cast<std::size_t>(group.rank())] = step;
        rule->after_step({step, kLr, 0, 1});
        int least = step;
        for (const auto& other : done) least = std::min(least, other.load());
        int seen = most.load();
        while (seen < step - least && !most.compare_exchange_weak(seen, step - least)) {
        }
      }
    });
    EXPECT_LE(most.load(), bound) << bound;
    EXPECT_GE(most.load(), bound > 0 ? 1 : 0);
  }
}

TEST(EasgdAsync, MovesCenterAndWorkerByTheSameForce) {
  comm::replicate(2, [&](const Group& group) {
    at::Tensor x = torch::zeros({5}, torch::kDouble);
    const auto rule = make_rule({.name = "easgd_async", .period = 1, .beta = 0.5},
                                {.workers = group, .world = group, .weights = {x}});
    x.fill_(group.rank() == 0 ? 8 : 0);
    if (group.rank() == 0) rule->after_step({1, kLr, 0, 1});  // worker 1 does not take part
    EXPECT_EQ(rule->result().weights[0][0].item<double>(), 2);
    EXPECT_EQ(x[4].item<double>(), group.rank() == 0 ? 6 : 0);
  });
}

TEST(EasgdAsync, TheCenterReachesTheMeanOfTheOptima) {
  const auto seen = train(4, {.name = "easgd_async", .period = 2, .staleness = 0}, 600);
  const at::Tensor best = torch::arange(10, torch::kDouble).mul(0.3).sin() + 1.5;
  expect_close(seen.result, best, 0.2);
}

TEST(Gossip, BringsWorkersTogetherAtTheMixingRateOfItsGraph) {
  for (const char* graph : {"ring", "exponential"}) {
    for (const int workers : {4, 8}) {
      Vectors x(static_cast<std::size_t>(workers));
      const int rounds = 12;
      std::mutex lock;
      comm::replicate(workers, [&](const Group& group) {
        at::Tensor mine = torch::zeros({1}, torch::kDouble);
        const auto rule = make_rule({.name = "gossip", .graph = graph},
                                    {.workers = group, .world = group, .weights = {mine}});
        mine.fill_(group.rank() % 2 == 0 ? 1 : std::cos(group.rank()));
        for (int step = 1; step <= rounds; ++step) rule->after_step({step, kLr, 0, 1});
        const std::lock_guard guard(lock);
        x[static_cast<std::size_t>(group.rank())] = mine.clone();
      });
      double mean = 0, before = 0, after = 0;
      for (int w = 0; w < workers; ++w) mean += (w % 2 == 0 ? 1 : std::cos(w)) / workers;
      for (int w = 0; w < workers; ++w) {
        before += std::pow((w % 2 == 0 ? 1 : std::cos(w)) - mean, 2);
        after += std::pow(x[static_cast<std::size_t>(w)].item<double>() - mean, 2);
      }
      const double rate = schedule::mixing_rate({schedule::parse_graph(graph), workers});
      EXPECT_LE(std::sqrt(after), std::sqrt(before) * std::pow(rate, rounds) * 1.01 + 1e-12)
          << graph << " " << workers;
      EXPECT_GT(std::sqrt(before), 0.1);
    }
  }
}

TEST(Rules, LetAWorkerThatIsTornApartContinueFromTheSavedState) {
  for (const char* name : {"local_sgd", "slow_momentum", "diloco", "easgd", "gossip"}) {
    const Strategy strategy{.name = name, .period = 3};
    const auto whole = train(2, strategy, 12);
    // As in a resumed run: weights and state after step 7 go into new objects.
    std::vector<Vectors> weights(2), arrays(2);
    Vectors numbers(2);
    Vectors seen(2);
    std::mutex lock;
    comm::replicate(2, [&](const Group& group) {
      const auto me = static_cast<std::size_t>(group.rank());
      const auto run = [&](at::Tensor& x, Rule& rule, int from, int to) {
        for (int step = from; step <= to; ++step) {
          x.sub_(gradient(x, group.rank()), kLr);
          rule.after_step({step, kLr, 0, 1});
        }
      };
      at::Tensor x = initial();
      const auto rule =
          make_rule(strategy, {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      run(x, *rule, 1, 7);
      at::Tensor y = torch::zeros_like(x);
      const auto other =
          make_rule(strategy, {.workers = group, .world = group, .weights = {y}, .buffers = {}});
      const auto from = rule->state(), to = other->state();
      for (const auto& [array, values] : from.arrays) to.arrays.at(array)[0].copy_(values[0]);
      to.numbers.copy_(from.numbers);
      y.copy_(x);
      run(y, *other, 8, 12);
      const std::lock_guard guard(lock);
      seen[me] = y;
    });
    for (std::size_t worker = 0; worker < 2; ++worker)
      expect_close(seen[worker], whole.weights[worker]);
  }
}

}  // namespace rules_test
}  // namespace weft::strategy
