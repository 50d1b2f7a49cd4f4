// Differences between ranks and between blocks: order, skipped blocks, tied and frozen parameters,
// passes without a batch.
#include <torch/optim/adamw.h>

#include <csignal>

#include "weft/engine/internal/parameter_gathers.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace sharded_order_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::by_torch;
using internal::compare;
using internal::make_parts;
using internal::ModelOptions;
using internal::Path;
using internal::require;

const auto kOptions = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);

Sharded make(const ModelOptions& how, const Group& group, int stage, Weights weights,
             int prefetch = 1) {
  ShardedOptions options;
  options.stage = stage;
  options.weights = weights;
  options.prefetch = prefetch;
  options.unit_bytes = 700;
  return {blocks_of(make_parts(how)), group, optimizer_spec(kOptions, {}), options};
}

void each_case(const Group& group,
               const std::function<void(int stage, Weights weights, int prefetch)>& fn) {
  for (const int stage : {1, 2, 3}) {
    for (Weights weights : {Weights::kShared, Weights::kPrivate}) {
      if (group.host() == nullptr && weights == Weights::kShared) continue;
      fn(stage, weights, 1);
    }
  }
  fn(3, Weights::kPrivate, 0);
  fn(3, Weights::kPrivate, 3);
}

void expect_paths(const Group& group, const ModelOptions& how, const std::vector<Path>& paths) {
  const auto expected = by_torch<torch::optim::AdamW>(how, kOptions, paths);
  each_case(group, [&](int stage, Weights weights, int prefetch) {
    auto model = make(how, group, stage, weights, prefetch);
    compare(model, group, expected, how, paths[static_cast<std::size_t>(group.rank())]);
  });
}

TEST(ShardedOrder, ABlockThatOneRankSkipsCountsAsZeroOnThatRank) {
  replicate(
      2,
      [](Group group) {
        expect_paths(group, {}, {{0, 1, 2, 3}, {0, 1, 3}});
      },
      20s);
  replicate(
      3,
      [](Group group) {
        expect_paths(group, {}, {{0, 2}, {0, 1, 2, 3}, {0}});
      },
      20s);
}

TEST(ShardedOrder, ABlockThatNoRankUsesIsNotUpdated) {
  replicate(
      2,
      [](Group group) {
        expect_paths(group, {}, {{0, 1, 3}, {0, 3}});
      },
      20s);
}

TEST(ShardedOrder, RanksMayRunBlocksInDifferentOrders) {
  replicate(
      3,
      [](Group group) {
        expect_paths(group, {}, {{0, 1, 2, 3}, {0, 3, 2, 1}, {0, 2, 1}});
      },
      20s);
}

TEST(ShardedOrder, SkippedAndReorderedBlocksDoNotHangOverTcp) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    expect_paths(group, {}, {{0, 1, 2, 3}, {0, 3, 1}});
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(ShardedOrder, TiedParametersAreShardedOnceAndTheirGradientsSummed) {
  replicate(
      3,
      [](Group group) {
        const ModelOptions how{.tie = true};
        expect_paths(group, how, {{}, {}, {}});
        auto model = make(how, group, 3, Weights::kPrivate);
        require(model.describe().find("16 parameters of 4 blocks in 5 units") != std::string::npos,
                model.describe());
      },
      20s);
}

TEST(ShardedOrder, FrozenParametersAreGatheredAndDoNotChange) {
  replicate(
      3,
      [](Group group) {
        expect_paths(group, {.freeze = true}, {{}, {}, {}});
      },
      20s);
}

TEST(ShardedOrder, BackwardPassesInsideNoSyncAddUp) {
  replicate(
      2,
      [](Group group) {
        const auto expected = by_torch<torch::optim::AdamW>({}, kOptions);
        each_case(group, [&](int stage, Weights weights, int prefetch) {
          auto model = make({}, group, stage, weights, prefetch);
          for (int step = 0; step < internal::kSteps; ++step) {
            model.zero_grad();
            const at::Tensor mine = internal::part_of(internal::batch_of(step, at::kDouble),
                                                      group.rank(), group.size());
            const int64_t half = mine.size(0) / 2;
            const double share = static_cast<double>(half) / static_cast<double>(mine.size(0));
            {
              const auto guard = model.no_sync();
              (internal::loss_of(model.forward(mine.slice(0, 0, half))) * share).backward();
            }
            (internal::loss_of(model.forward(mine.slice(0, half))) * (1 - share)).backward();
            model.step();
          }
          const auto gradients = model.gradients();
          const auto state = model.state();
          if (state.empty()) return;
          internal::expect_close({gradients.begin(), gradients.end()}, expected.gradients, 1e-10,
                                 model.describe());
          internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                 1e-10, model.describe());
        });
      },
      20s);
}

TEST(ShardedOrder, ARankWithoutABatchOnlyNeedsToCallStep) {
  replicate(
      3,
      [](Group group) {
        each_case(group, [&](int stage, Weights weights, int prefetch) {
          auto model = make({}, group, stage, weights, prefetch);
          auto alone = make({}, group.subgroup({group.rank()}, "alone"), 1, Weights::kPrivate);
          for (int step = 0; step < 2; ++step) {
            const at::Tensor x = internal::batch_of(step, at::kDouble);
            if (group.rank() == 1) internal::loss_of(model.forward(x)).backward();
            if (group.rank() == 2 && step == 1) model.skip_batch();
            model.step();
            model.zero_grad();
            internal::loss_of(alone.forward(x)).backward();
            alone.step();
            alone.zero_grad();
          }
          const auto state = model.state(), expected = alone.state();
          if (group.rank() == 0)
            internal::expect_close({state.begin(), state.end()}, {expected.begin(), expected.end()},
                                   1e-10, "state");
        });
      },
      20s);
}

TEST(ShardedOrder, EvaluationMaySkipBlocksAndEndItsPass) {
  replicate(
      2,
      [](Group group) {
        const auto expected = by_torch<torch::optim::AdamW>({}, kOptions);
        auto model = make({}, group, 3, Weights::kPrivate);
        for (int step = 0; step < internal::kSteps; ++step) {
          model.zero_grad();
          internal::train(model, group, step, {});
          const at::NoGradGuard guard;
          const at::Tensor x = internal::batch_of(0, at::kDouble);
          if (group.rank() == 0) model.forward(x);
          if (group.rank() == 1) model.run(0, {x});
          model.end_pass();
          group.barrier();
        }
        const auto state = model.state();
        if (group.rank() == 0)
          internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                 1e-10, "weights");
      },
      20s);
}

TEST(ShardedOrder, RanksThatMakeDifferentPassesGetAnError) {
  try {
    replicate(
        2,
        [](Group group) {
          auto model = make({}, group, 3, Weights::kPrivate);
          at::Tensor y = model.forward(internal::batch_of(0, at::kDouble));
          if (group.rank() == 0) y = model.forward(internal::batch_of(0, at::kDouble));
          internal::loss_of(y).backward();
          model.step();
        },
        20s);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    EXPECT_NE(
        std::string(error.what()).find("all ranks must make the same forward and backward passes"),
        std::string::npos)
        << error.what();
  }
}

TEST(ShardedOrder, NamesTheFirstParameterInWhichModelsDiffer) {
  try {
    replicate(
        2, [](Group group) { make({.width = 10 + group.rank()}, group, 2, Weights::kAuto); }, 20s);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
  }
}

TEST(ShardedOrder, AKilledRankIsPeerLostOnTheOthers) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int stage : {2, 3}) {
      const auto codes = comm::fork_ranks(3, transport, [&](const Group& group) {
        auto model = make({}, group, stage, Weights::kPrivate);
        try {
          for (int step = 0; step < 100; ++step) {
            const at::Tensor y = model.forward(internal::batch_of(step, at::kDouble));
            if (step == 2 && group.rank() == 2) raise(SIGKILL);
            internal::loss_of(y).backward();
            model.step();
            model.zero_grad();
          }
        } catch (const Error& error) {
          if (error.code() == Errc::kPeerLost && error.context().peer == 2) return 0;
          std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
          return 1;
        }
        return 2;
      });
      EXPECT_EQ(codes, (std::vector<int>{0, 0, -SIGKILL})) << transport << ", stage " << stage;
    }
  }
}

TEST(ParameterGathers, OutOfOrderDoNotCountInTheNextOnes) {
  replicate(1, [](const Group& group) {
    using Direction = internal::ParameterGathers::Direction;
    std::vector<internal::Unit> units(2);
    for (int block = 0; block < 2; ++block) {
      internal::Unit& unit = units[static_cast<std::size_t>(block)];
      unit.blocks = {block};
      unit.shard = unit.elements = 16;
      unit.master = torch::zeros({16});
      unit.flat = torch::zeros({16});
    }
    internal::Meter meter;
    internal::ParameterGathers gathers(group, units, 1, meter);
    const auto are_in_order = [&](const std::vector<int>& forward) {
      const auto pass = [&](int block, Direction direction) {
        gathers.enter(block, direction);
        for (const int unit : gathers.units_of(block)) gathers.release(unit);
      };
      for (const int block : forward) pass(block, Direction::kForward);
      for (const int block : {1, 0}) pass(block, Direction::kBackward);
      const bool in_order = gathers.in_order();
      gathers.finish(Direction::kBackward);
      return in_order;
    };
    EXPECT_FALSE(are_in_order({1, 0}));
    EXPECT_TRUE(are_in_order({0, 1}));
    gathers.drain();
  });
}

}  // namespace sharded_order_test
}  // namespace weft::engine
