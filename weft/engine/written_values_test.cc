// Values that a program writes through data(), which no version of a tensor tells: found before
// the first step, and wherever the model's values leave it between two steps.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace written_values_test {

using namespace std::chrono_literals;
using namespace small_model;
using testing::HasSubstr;

const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);
// Matrices of 90 x 90 values: samples do not see all.
const ModelOptions kWide{.width = 90};
// An element of a matrix that samples do not see in the first steps.
constexpr int kUnseen = 330;
const auto kWrittenShared = HasSubstr("was changed in place, but its memory is shared");
const auto kDiffers = HasSubstr("the values of 'b1.fc.weight' differ between rank 0 and rank 1");

// A rank's model.
struct Rank {
  Group group;
  std::vector<Part> parts;
  Sharded model;

  Rank(Group of, const Case& how, const ModelOptions& options,
       const OptimizerSpec& spec = optimizer_spec(kSgd, {}))
      : group(std::move(of)),
        parts(make_parts(options)),
        model(blocks_of(parts), group, spec, options_of(how.stage, how.weights)) {}
  void train(int step) {
    model.zero_grad();
    small_model::train(model, group, step, kWide);
  }
  // One value, on rank 1.
  void write(std::size_t part = 1) {
    group.barrier();
    if (group.rank() == 1) parts[part]->fc->weight.data().view({-1})[31].mul_(1.5);
    group.barrier();
  }
};

std::string error_of(const Case& how, const std::function<void(Rank&)>& act,
                     const ModelOptions& options = kWide,
                     const OptimizerSpec& spec = optimizer_spec(kSgd, {})) {
  const auto ranks = [&](const Group& group) {
    Rank rank(group, how, options, spec);
    act(rank);
  };
  return refusal([&] { comm::replicate(2, ranks, 20s); });
}

TEST(WrittenValues, AreFoundInSharedWeightsBeforeTheFirstStepAndAfterALoad) {
  for (const int stage : {0, 1, 3}) {
    const Case how{stage, Weights::kShared};
    const auto train = [](Rank& rank) { rank.train(0); };
    EXPECT_THAT(error_of(how,
                         [&](Rank& rank) {
                           train(rank);
                           rank.write();
                           rank.model.state();
                         }),
                kWrittenShared)
        << stage;
    EXPECT_EQ(error_of(how, train), "accepted") << stage;
    EXPECT_THAT(error_of(how,
                         [&](Rank& rank) {
                           rank.write();
                           train(rank);
                         }),
                kWrittenShared)
        << stage;
    EXPECT_THAT(error_of(how,
                         [&](Rank& rank) {
                           train(rank);
                           rank.model.load_state(rank.model.state());
                           rank.write();
                           train(rank);
                         }),
                kWrittenShared)
        << stage;
  }
}

TEST(WrittenValues, AreFoundByTakeChanges) {
  for (const Case& how : kCases) {
    const bool shared = how.weights == Weights::kShared;
    if (!shared && (how.stage == 0 || how.stage == 3)) continue;
    for (const int times : {0, 1, 2}) {  // a step, or what gather() does, and again
      const auto act = [&](bool writes) {
        return [times, writes](Rank& rank) {
          if (times > 0) rank.train(0);
          if (times > 1) rank.model.take_changes();
          if (writes) rank.write();
          rank.model.take_changes();
          rank.train(1);
        };
      };
      EXPECT_EQ(error_of(how, act(false)), "accepted") << how.stage;
      if (shared) {
        EXPECT_THAT(error_of(how, act(true)), kWrittenShared) << how.stage << times;
      } else {
        EXPECT_THAT(error_of(how, act(true)), kDiffers) << how.stage << times;
      }
    }
  }
}

TEST(WrittenValues, AreFoundInFrozenWeightsAndUnderRulesOfWholeTensors) {
  const auto act = [](std::size_t part) {
    return [part](Rank& rank) {
      rank.train(0);
      if (part > 0) rank.write(part);
      rank.model.take_changes();
    };
  };
  ModelOptions frozen = kWide;
  frozen.freeze = true;
  for (const int stage : {1, 3}) {
    const Case how{stage, Weights::kShared};
    EXPECT_EQ(error_of(how, act(0), frozen), "accepted") << stage;
    EXPECT_THAT(error_of(how, act(2), frozen), kWrittenShared) << stage;
  }
  for (const int stage : {0, 2}) {
    const Case how{stage, Weights::kShared};
    const OptimizerSpec spec = optimizer_spec(optim::Lamb{}, {});
    EXPECT_EQ(error_of(how, act(0), kWide, spec), "accepted") << stage;
    EXPECT_THAT(error_of(how, act(1), kWide, spec), kWrittenShared) << stage;
  }
}

// An earlier check took the updates of such rules for changes of the program.
TEST(WrittenValues, LoadedSharedWeightsCountUnderRulesOfWholeTensors) {
  for (const int stage : {0, 1, 2}) {
    EXPECT_EQ(error_of(
                  {stage, Weights::kShared},
                  [](Rank& rank) {
                    for (int step = 0; step < 4; ++step) {
                      rank.train(step);
                      if (step != 2) continue;
                      at::Tensor& bias = rank.parts[1]->fc->bias;
                      bias.set_data(torch::arange(bias.numel(), at::kDouble) * 0.01);
                    }
                  },
                  kWide, optimizer_spec(optim::Lamb{}, {})),
              "accepted")
        << stage;
  }
}

// The program writes to them as long as it has them, and may load other weights too.
TEST(WrittenValues, OfHeldSlicesCount) {
  for (const Case& how : kCases) {
    if (how.stage == 3 && how.weights == Weights::kPrivate) continue;
    EXPECT_EQ(error_of(how,
                       [&](Rank& rank) {
                         rank.train(0);
                         checkpoint::Slices held = rank.model.held();
                         for (int step = 1; step < 4; ++step) {
                           const at::NoGradGuard guard;
                           for (checkpoint::Slice& slice : held) {
                             if (slice.name == "b1.fc.weight") slice.tensor.fill_(0.01 * step);
                           }
                           at::Tensor& bias = rank.parts[3]->fc->bias;
                           if (step == 2) bias.set_data(torch::ones_like(bias));
                           if (step == 3) held.clear();
                           rank.model.take_changes();
                           rank.group.barrier();
                           require(at::equal(rank.parts[1]->fc->weight,
                                             torch::full({90, 90}, 0.01 * step, at::kDouble)),
                                   "a value of held() at stage " + std::to_string(how.stage));
                           rank.group.barrier();
                           const at::AutoGradMode learns(true);
                           if (step != 2) rank.train(step);
                         }
                       }),
              "accepted")
        << how.stage << to_string(how.weights);
  }
}

// The check looks again when the program has no held() values any more.
TEST(WrittenValues, AreFoundAfterHeldSlicesAreGone) {
  EXPECT_THAT(error_of({2, Weights::kShared},
                       [](Rank& rank) {
                         rank.model.held();
                         rank.train(0);
                         rank.write();
                         rank.model.take_changes();
                       }),
              kWrittenShared);
}

// A strategy keeps slices of held(), and writes to them at times. A change of the program is none
// of these.
TEST(WrittenValues, AreFoundWhileTheProgramHasHeldSlices) {
  for (const Case& how : kCases) {
    if (how.weights != Weights::kShared) continue;
    for (const bool before : {true, false}) {
      EXPECT_THAT(error_of(how,
                           [before](Rank& rank) {
                             const checkpoint::Slices held = rank.model.held();
                             rank.train(0);
                             if (before) rank.write();
                             rank.model.take_changes();
                             if (!before) rank.write();
                             rank.train(1);
                           }),
                  kWrittenShared)
          << how.stage << before;
    }
  }
}

// Gathers of the weights would put the values of other ranks in their place.
TEST(WrittenValues, OfOneRankAreFoundByStep16UnderZero) {
  const auto exchange = [](Rank& rank) {
    at::Tensor values = rank.parts[1]->fc->weight.data().view({-1});
    if (rank.group.rank() == 1) values.slice(0, 30, 32).copy_(values.slice(0, 30, 32).flip(0));
  };
  const auto backward = [](Rank& rank) {
    rank.model.zero_grad();
    const at::Tensor x = part_of(batch_of(1, at::kDouble), rank.group.rank(), rank.group.size());
    loss_of(rank.model.forward(x)).backward();
  };
  for (const int stage : {1, 2}) {
    const Case how{stage, Weights::kPrivate};
    const auto error_of_change = [&](const std::function<void(Rank&)>& change, bool late) {
      return error_of(how, [&](Rank& rank) {
        for (int step = 0; step < 15; ++step) rank.train(step);
        if (!late) change(rank);
        backward(rank);
        if (late) change(rank);
        rank.model.step();
      });
    };
    for (const bool late : {false, true}) {
      EXPECT_THAT(error_of_change([](Rank& rank) { rank.write(); }, late), kDiffers) << stage;
      EXPECT_THAT(error_of_change(exchange, late), kDiffers) << stage;
    }
  }
}

// The optimizer has other copies of these weights. Samples do not see the value.
TEST(WrittenValues, OfWeightsOfAnotherTypeAreFoundByStep16) {
  const auto train = [](const Group& group, Weights weights, int writers) {
    std::vector<Part> parts = make_parts({.type = at::kFloat, .width = 90});
    ShardedOptions options = options_of(2, weights);
    options.compute = at::kBFloat16;
    Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}), options);
    for (int step = 0; step < 17; ++step) {
      model.zero_grad();
      const at::Tensor x = part_of(batch_of(step, at::kFloat), group.rank(), group.size());
      loss_of(model.forward(x)).backward();
      group.barrier();
      if (step == 15 && group.rank() < writers)
        parts[1]->fc->weight.data().view({-1})[kUnseen].add_(1);
      group.barrier();
      model.step();
    }
  };
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    for (const int writers : {0, 1, 2}) {
      std::string error = "accepted";
      try {
        comm::replicate(
            2, [&](const Group& group) { train(group, weights, writers); }, 20s);
      } catch (const Error& refused) {
        EXPECT_EQ(refused.code(), Errc::kInvalidArgument) << refused.what();
        error = refused.what();
      }
      EXPECT_THAT(error, writers > 0 ? HasSubstr("'b1.fc.weight'") : HasSubstr("accepted"))
          << to_string(weights) << writers;
    }
  }
}

TEST(WrittenValues, OfOneRankInEachStepAreFoundUnderZero) {
  for (const int stage : {1, 2}) {
    EXPECT_THAT(error_of({stage, Weights::kPrivate},
                         [](Rank& rank) {
                           for (int step = 0; step < 17; ++step) {
                             rank.write();
                             rank.train(step);
                           }
                         }),
                kDiffers)
        << stage;
  }
}

}  // namespace written_values_test
}  // namespace weft::engine
