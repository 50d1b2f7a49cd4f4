// Expert and context parallelism together, against one process. For the experts, ranks of cp are
// replicas with their own tokens.
#include <torch/optim/adamw.h>

#include <numeric>

#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_experts_context_test {

using namespace internal;
using testing::HasSubstr;

// Chunks of sizes 2, 2, 2 and 1 over two ranks.
Tiny mixed(at::ScalarType type = at::kDouble) {
  return {.type = type, .bodies = 2, .length = 7, .attends = true, .experts = 4};
}

void compare(const Case& c, const Tiny& how, double most) {
  steps_of(c, how, by_torch<torch::optim::AdamW>(how, adam(), c.batches()), most);
}

TEST(ComposeExpertsContext, EqualsOneProcessWithAllExpertsOnEachRank) {
  for (const Case& c :
       {on({{"cp", 2}}), on({{"cp", 3}}, {.micro_batches = 2}), on({{"dp", 2}, {"cp", 2}}),
        on({{"cp", 2}, {"tp", 2}}), on({{"fsdp", 2}, {"cp", 2}}, {.weights = Weights::kPrivate})}) {
    compare(c, mixed(), 1e-10);
  }
}

TEST(ComposeExpertsContext, EqualsOneProcessWithEveryOtherAxis) {
  const std::vector<Axis> axes = {{"ep", 2}, {"cp", 2}};
  for (const Case& c :
       {on(axes), on({{"cp", 2}, {"ep", 4}}, {.micro_batches = 2}),
        on(axes, {.context = ContextMethod::kHeads}),
        on(axes, {.micro_batches = 2, .recompute = Recompute::kFull}),
        on({{"dp", 2}, {"ep", 2}, {"cp", 2}}), on({{"ep", 2}, {"cp", 2}, {"tp", 2}})}) {
    compare(c, mixed(), 1e-10);
  }
}

TEST(ComposeExpertsContext, EqualsOneProcessWithShardsAndStages) {
  const std::vector<Axis> shards = {{"fsdp", 2}, {"ep", 2}, {"cp", 2}},
                          stages = {{"pp", 2}, {"ep", 2}, {"cp", 2}};
  for (const Case& c : {on(shards, {.zero_stage = 1}),
                        on(shards, {.micro_batches = 2, .weights = Weights::kPrivate}), on(shards),
                        on(stages, by(Algorithm::kOneForwardOneBackward, 3)),
                        on(stages, by(Algorithm::kZeroBubbleV, 3))}) {
    compare(c, mixed(), 1e-10);
  }
}

// Five and six samples in eight micro-batches; three positions over four ranks, the last of which
// has none.
TEST(ComposeExpertsContext, EqualsOneProcessIfRanksHaveNoRowOrNoPosition) {
  compare(on({{"ep", 2}, {"cp", 2}}, {.micro_batches = 8}), mixed(), 1e-10);
  Tiny brief = mixed();
  brief.length = 3;
  compare(on({{"cp", 4}}), brief, 1e-10);
  compare(on({{"ep", 2}, {"cp", 4}}), brief, 1e-10);
}

TEST(ComposeExpertsContext, TrainsInFloat32WithinItsRounding) {
  compare(on({{"cp", 2}}), mixed(at::kFloat), 1e-5);
  compare(on({{"dp", 2}, {"ep", 2}, {"cp", 2}}), mixed(at::kFloat), 1e-5);
}

TEST(ComposeExpertsContext, ClipsTheNormOfTheWholeModelOnce) {
  Tiny how = mixed();
  how.clip = by_torch<torch::optim::AdamW>(how, adam()).norms[0] / 3;
  compare(on({{"dp", 2}, {"ep", 2}, {"cp", 2}}), how, 1e-10);
}

TEST(ComposeExpertsContext, ACheckpointContinuesUnderAnotherPlan) {
  const Tiny how = mixed();
  ParallelModel::NamedTensors saved;
  go_on(on({{"ep", 2}, {"cp", 2}}), how, {0, 2}, saved);
  go_on(on({{"cp", 2}, {"tp", 2}}), how, {2, 4}, saved);
  go_on(on({{"ep", 4}}), how, {4, kSteps}, saved);
  expect_close(named(saved), by_torch<torch::optim::AdamW>(how, adam()).weights, 1e-10,
               "three plans");
}

TEST(ComposeExpertsContext, EvaluatesAndPredictsLikeOneProcess) {
  const auto shown = [](int world, const std::vector<Axis>& axes) {
    Named all;
    replicate(world, [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model(mixed()), {.seed = kSeed}, Mesh(group, axes));
      const auto mine = [&](int shift) {
        return share_of(tokens_of(1, shift, 7), model.replica(), model.replicas());
      };
      const double loss = model.evaluate({mine(0)}, {mine(1)});
      const Tensors outputs = model.predict({mine(0)});
      if (group.rank() == 0)
        all = {{"loss", torch::full({1}, loss, at::kDouble)},
               {"outputs", outputs[0].narrow(0, 0, 5)}};
    });
    return all;
  };
  expect_close(shown(4, {{"ep", 2}, {"cp", 2}}), shown(1, {}), 1e-12, "two replicas of two ranks");
}

// Loads of each layer on the ranks that have it, over all micro-batches.
TEST(ComposeExpertsContext, CountsTheLoadsOfTheWholeBatchOnEveryRank) {
  const auto loads_under = [](int world, const std::vector<Axis>& axes) {
    std::vector<std::map<std::string, ExpertLoad>> all(static_cast<std::size_t>(world));
    replicate(world, [&](const Group& group) {
      ParallelModel model =
          parallelize(tiny_model(mixed()), {.seed = kSeed, .micro_batches = 3}, Mesh(group, axes));
      train(model, 0, 7);
      all[static_cast<std::size_t>(group.rank())] = model.take_expert_loads();
      EXPECT_EQ(model.take_expert_loads().begin()->second.tokens, 0) << "taken";
    });
    return all;
  };
  const auto one = loads_under(1, {})[0];
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one.at("body.0.experts").tokens, kSamples * 7);
  const auto many = loads_under(8, {{"pp", 2}, {"ep", 2}, {"cp", 2}});
  for (std::size_t rank = 0; rank < many.size(); ++rank) {
    ASSERT_EQ(many[rank].size(), 1u) << "a layer a stage";
    const auto& [layer, load] = *many[rank].begin();
    EXPECT_EQ(layer, rank < 4 ? "body.0.experts" : "body.1.experts");
    EXPECT_EQ(load.wanted, one.at(layer).wanted) << "rank " << rank;
    EXPECT_EQ(load.tokens, kSamples * 7);
  }
}

// The capacity is per sequence, and its tokens are divided over the ranks. About a fifth is
// dropped.
TEST(ComposeExpertsContext, DropsTheSameTokensAsOneProcess) {
  Tiny how = mixed();
  how.capacity = 1;
  Tiny brief = how;
  brief.length = 3;
  const std::vector<Axis> axes = {{"ep", 2}, {"cp", 2}};
  for (const Case& c :
       {on({{"cp", 2}}), on({{"cp", 3}}, {.micro_batches = 2}),
        on(axes, {.context = ContextMethod::kHeads}),
        on(axes, {.micro_batches = 8, .recompute = Recompute::kFull}),
        on({{"dp", 2}, {"ep", 2}, {"cp", 2}}),
        on({{"pp", 2}, {"ep", 2}, {"cp", 2}}, by(Algorithm::kOneForwardOneBackward, 3))}) {
    compare(c, how, 1e-10);
  }
  compare(on({{"ep", 2}, {"cp", 4}}), brief, 1e-10);  // a rank without a position
  const auto loads_on = [&](int world, const std::vector<Axis>& mesh) {
    ExpertLoad load;
    replicate(world, [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model(how), {.seed = kSeed}, Mesh(group, mesh));
      train(model, 0, how.length);
      const auto all = model.take_expert_loads();
      if (group.rank() == 0) load = all.at("body.0.experts");
    });
    return load;
  };
  const ExpertLoad one = loads_on(1, {}), four = loads_on(4, axes);
  EXPECT_GT(std::accumulate(one.dropped.begin(), one.dropped.end(), std::int64_t{0}), kSamples);
  EXPECT_EQ(four.dropped, one.dropped);
}

TEST(ComposeExpertsContext, DescribesTheRanksOverWhichExpertsAreBalanced) {
  replicate(4, [](const Group& group) {
    const std::string text =
        parallelize(tiny_model(mixed()), {}, Mesh(group, {{"ep", 2}, {"cp", 2}})).describe();
    EXPECT_THAT(text, HasSubstr("place experts: 4 experts over ep=2, balanced over 4 ranks"));
    EXPECT_THAT(text, HasSubstr("replicate: gradients are summed over cp=2 x ep=2, once a step; "
                                "experts' over cp=2 alone\n"));
  });
}

}  // namespace compose_experts_context_test
}  // namespace weft::parallel
