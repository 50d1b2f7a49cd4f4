// Two models whose outputs one loss uses. If a rank leaves one of them out, or alone drops a batch,
// all ranks get an error at once.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/trainers.h"

namespace weft::engine {
namespace two_models_test {

using namespace std::chrono_literals;
using habits::Chains;
using habits::Parts;
using habits::Path;
using internal::batch_of;
using internal::loss_of;
using internal::make_parts;
using internal::part_of;
using testing::AllOf;
using testing::HasSubstr;

using Sgd = torch::optim::SGD;
const auto kSgd = torch::optim::SGDOptions(0.1);
const Path kBoth{0, 1, 2, 3}, kFirst{0, 1};

// Parts 0 and 1 are a model, and 2 and 3 another one.
struct Pair {
  explicit Pair(const Group& group, Weights weights = Weights::kPrivate)
      : rank(group.rank()),
        size(group.size()),
        parts(make_parts({})),
        models(parts, 2, group, {.weights = weights}) {}

  void backward(int step, const Path& path) {
    loss_of(models.forward(part_of(batch_of(step, at::kDouble), rank, size), path)).backward();
  }

  const int rank, size;
  Parts parts;
  Chains models;
};

// What two ranks get, long before the deadline of 20 s.
std::string refusal_of(const std::function<void(const Group&)>& ranks) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = refusal([&] { comm::replicate(2, ranks, 20s); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s) << text;
  return text;
}

TEST(TwoModels, OneThatARankLeavesOutIsAnErrorWithOptimizersOfTorch) {
  for (const int culprit : {0, 1}) {
    EXPECT_THAT(
        refusal_of([&](const Group& group) {
          Pair pair(group);
          Sgd first(pair.models.all[0]->parameters(), kSgd),
              second(pair.models.all[1]->parameters(), kSgd);
          for (int step = 0; step < 3; ++step) {
            first.zero_grad();
            second.zero_grad();
            pair.backward(step, step > 0 && group.rank() == culprit ? kFirst : kBoth);
            first.step();
            second.step();
          }
        }),
        AllOf(HasSubstr("at the end of backward(), and rank"), HasSubstr("'b0.norm.weight'"),
              HasSubstr("so they wait for each other"), HasSubstr("set_samples(0)")));
  }
}

// Three steps with weft's optimizers. `backward` makes the gradients of a step; `zero_grad` drops
// those that it has made.
using Backward = std::function<void(Pair& pair, int step, const std::function<void()>& zero_grad)>;
void take_steps(const Group& group, Weights weights, const Backward& backward) {
  Pair pair(group, weights);
  auto first = pair.models.all[0].optimizer<Sgd>(kSgd);
  auto second = pair.models.all[1].optimizer<Sgd>(kSgd);
  const auto zero_grad = [&] {
    first.zero_grad();
    second.zero_grad();
  };
  for (int step = 0; step < 3; ++step) {
    zero_grad();
    backward(pair, step, zero_grad);
    first.step();
    second.step();
  }
}

TEST(TwoModels, OneThatARankLeavesOutIsAnErrorWithOptimizersOfWeft) {
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    EXPECT_THAT(refusal_of([&](const Group& group) {
                  take_steps(group, weights, [](Pair& pair, int step, const auto&) {
                    pair.backward(step, step > 0 && pair.rank == 1 ? kFirst : kBoth);
                  });
                }),
                HasSubstr("backward() has reached other models together with that of "
                          "'b0.norm.weight' on rank 0 than on rank 1"));
  }
}

// ZeRO. Each model has one block, so no rank waits for gradients within backward(). In step 1,
// rank 1 leaves the second model out, or adds zero times its output.
void take_sharded_steps(const Group& group, const internal::Case& how, bool leaves_out) {
  const Parts parts = make_parts({});
  const auto make = [&](const Parts& some) {
    return Sharded(internal::blocks_of(some), group, optimizer_spec(kSgd, {}),
                   internal::options_of(how.stage, how.weights));
  };
  Sharded first = make({parts[0]}), second = make({parts[1]});
  for (int step = 0; step < 2; ++step) {
    first.zero_grad();
    second.zero_grad();
    const at::Tensor h =
        first.forward(part_of(batch_of(step, at::kDouble), group.rank(), group.size()));
    const bool differs = step == 1 && group.rank() == 1;
    at::Tensor loss = differs ? loss_of(h) : loss_of(second.forward(h));
    if (differs && !leaves_out) loss = loss + (second.forward(h) * 0).sum();
    loss.backward();
    first.step();
    second.step();
  }
}

// From stage 2 on, a rank waits within backward() for the sums of a model that another one leaves
// out.
TEST(TwoModels, OneThatARankLeavesOutIsAnErrorWithZero) {
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    EXPECT_THAT(refusal_of([&](const Group& group) {
                  take_sharded_steps(group, {1, weights}, /*leaves_out=*/true);
                }),
                HasSubstr("backward() has reached other models together with that of "
                          "'b0.norm.weight' on some ranks than on others"));
    for (const int stage : {1, 2})
      EXPECT_EQ(refusal_of([&](const Group& group) {
                  take_sharded_steps(group, {stage, weights}, /*leaves_out=*/false);
                }),
                "accepted");
  }
}

TEST(TwoModels, ABatchThatOneRankAloneDropsIsAnError) {
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    EXPECT_THAT(refusal_of([&](const Group& group) {
                  take_steps(group, weights, [](Pair& pair, int step, const auto& zero_grad) {
                    if (step == 1 && pair.rank == 0) {
                      pair.backward(9, kBoth);
                      zero_grad();
                    }
                    pair.backward(step, kBoth);
                  });
                }),
                AllOf(HasSubstr("after zero_grad() has dropped gradients of model "),
                      HasSubstr(" steps model "), HasSubstr("drop gradients on all ranks")));
  }
}

TEST(TwoModels, StepsOfOptimizersInAnotherOrderAreAnError) {
  EXPECT_THAT(refusal_of([&](const Group& group) {
                Pair pair(group);
                auto first = pair.models.all[0].optimizer<Sgd>(kSgd);
                auto second = pair.models.all[1].optimizer<Sgd>(kSgd);
                pair.backward(0, kBoth);
                group.rank() == 0 ? first.step() : second.step();
                group.rank() == 0 ? second.step() : first.step();
              }),
              HasSubstr("step the optimizers in the same order on all ranks"));
}

// A rank without any batch calls step() only, and each model is weighted by its own samples.
TEST(TwoModels, ARankWithoutABatchLeavesBothOut) {
  comm::replicate(
      2,
      [&](const Group& group) {
        Pair pair(group), alone(group.subgroup({group.rank()}, "alone"));
        auto first = pair.models.all[0].optimizer<Sgd>(kSgd);
        auto second = pair.models.all[1].optimizer<Sgd>(kSgd);
        auto own_first = alone.models.all[0].optimizer<Sgd>(kSgd);
        auto own_second = alone.models.all[1].optimizer<Sgd>(kSgd);
        for (int step = 0; step < 2; ++step) {
          const at::Tensor x = batch_of(step, at::kDouble);
          for (auto* optimizer : {&first, &second, &own_first, &own_second}) optimizer->zero_grad();
          loss_of(alone.models.forward(x, kBoth)).backward();
          if (group.rank() == 0) loss_of(pair.models.forward(x, kBoth)).backward();
          for (auto* optimizer : {&first, &second, &own_first, &own_second}) optimizer->step();
        }
        internal::expect_close(internal::weights_of(pair.parts), internal::weights_of(alone.parts),
                               1e-10, "both");
      },
      20s);
}

// An actor and a critic with part 0 as their trunk.
void expect_error_of_both(const std::function<void()>& actor, const std::function<void()>& critic) {
  for (const auto& forward : {actor, critic}) {
    expect_refused(forward, Errc::kInvalidArgument,
                   "'b0.norm.weight' is a parameter of two parallel models");
    const torch::NoGradGuard no_grad;
    forward();
  }
}

TEST(TwoModels, AParameterOfBothIsAnErrorWhileBothExist) {
  comm::replicate(
      2,
      [](const Group& group) {
        const Parts parts = make_parts({});
        const at::Tensor x = batch_of(0, at::kDouble);
        auto actor = data_parallel(habits::Chain(Parts{parts[0], parts[1]}), group);
        {
          auto critic = data_parallel(habits::Chain(Parts{parts[0], parts[2]}), group);
          expect_error_of_both([&] { actor.forward(x, kFirst); },
                               [&] { critic.forward(x, kFirst); });
        }
        loss_of(actor.forward(x, kFirst)).backward();
      },
      20s);
}

TEST(TwoModels, AParameterOfBothIsAnErrorWithZeroToo) {
  for (const int stage : {0, 1, 2}) {
    EXPECT_THAT(refusal_of([&](const Group& group) {
                  const Parts parts = make_parts({});
                  const auto make = [&](const Parts& some) {
                    return Sharded(internal::blocks_of(some), group, optimizer_spec(kSgd, {}),
                                   internal::options_of(stage, Weights::kPrivate));
                  };
                  Sharded actor = make({parts[0], parts[1]});
                  const Sharded critic = make({parts[0], parts[2]});
                  actor.forward(batch_of(0, at::kDouble));
                }),
                HasSubstr("'b0.norm.weight' is a parameter of two parallel models"));
  }
}

TEST(TwoModels, OneThatARankLeavesOutIsAnErrorWhereGradientsAreMessages) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    Pair pair(group);
    Sgd first(pair.models.all[0]->parameters(), kSgd),
        second(pair.models.all[1]->parameters(), kSgd);
    const auto start = std::chrono::steady_clock::now();
    try {
      for (int step = 0; step < 3; ++step) {
        first.zero_grad();
        second.zero_grad();
        pair.backward(step, step > 0 && group.rank() == 1 ? kFirst : kBoth);
        first.step();
        second.step();
      }
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool tells = what.find("those of another model") != std::string::npos;
      return tells && std::chrono::steady_clock::now() - start < 5s ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace two_models_test
}  // namespace weft::engine
