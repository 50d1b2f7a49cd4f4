// Context parallelism combined with every other axis equals one process in training, losses and
// predictions.
#include <torch/optim/adamw.h>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_context_test {

using namespace internal;
using testing::HasSubstr;

// Chunks of sizes 2, 2, 2 and 1 over two ranks.
Tiny attending(at::ScalarType type = at::kDouble) {
  return {.type = type, .bodies = 2, .length = 7, .attends = true};
}

TEST(ComposeContext, EqualsOneProcessWithEveryOtherAxis) {
  const Tiny how = attending();
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c :
       {on({{"cp", 2}}), on({{"cp", 3}}, {.micro_batches = 2}),
        on({{"cp", 2}}, {.context = ContextMethod::kHeads}), on({{"cp", 2}, {"tp", 2}}),
        on({{"dp", 2}, {"cp", 2}}), on({{"dp", 2}, {"cp", 2}}, {.micro_batches = 8})}) {
    steps_of(c, how, expected, 1e-10);
  }
}

TEST(ComposeContext, EqualsOneProcessWithEveryZeroStage) {
  const Tiny how = attending();
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  const std::vector<Axis> axes = {{"fsdp", 2}, {"cp", 2}};
  for (const Case& c :
       {on(axes, {.zero_stage = 1}), on(axes, {.zero_stage = 2, .weights = Weights::kPrivate}),
        on(axes, {.weights = Weights::kPrivate}), on(axes, {.recompute = Recompute::kFull})}) {
    steps_of(c, how, expected, 1e-10);
  }
}

TEST(ComposeContext, EqualsOneProcessWithPipelineStages) {
  const Tiny how = attending();
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c : {on({{"pp", 2}, {"cp", 2}}, by(Algorithm::kOneForwardOneBackward, 3)),
                        on({{"pp", 2}, {"cp", 2}}, by(Algorithm::kZeroBubbleV, 3)),
                        on({{"pp", 2}, {"cp", 2}, {"tp", 2}}, by(Algorithm::kZeroBubbleH1, 2)),
                        on({{"pp", 2}, {"fsdp", 2}, {"cp", 2}},
                           by(Algorithm::kOneForwardOneBackward, 2, 3, Weights::kPrivate))}) {
    steps_of(c, how, expected, 1e-10);
  }
}

TEST(ComposeContext, TrainsInFloat32WithinItsRounding) {
  const Tiny how = attending(at::kFloat);
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c : {on({{"cp", 2}, {"tp", 2}}),
                        on({{"pp", 2}, {"cp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    steps_of(c, how, expected, 1e-5);
  }
}

TEST(ComposeContext, ClipsTheNormOfTheWholeModelOnce) {
  Tiny how = attending();
  how.clip = by_torch<torch::optim::AdamW>(how, adam()).norms[0] / 3;
  steps_of(on({{"dp", 2}, {"cp", 2}}), how, by_torch<torch::optim::AdamW>(how, adam()), 1e-10);
}

struct Shown {
  at::Tensor outputs;
  double loss = 0;
};

// A model's predictions and loss on the second batch, after a step on the first.
std::vector<Shown> shown_under(const std::vector<Axis>& axes, int world) {
  const Tiny how = attending();
  std::vector<Shown> all(static_cast<std::size_t>(world));
  replicate(world, [&](const Group& group) {
    const Mesh mesh(group, axes);
    ParallelModel model = parallelize(tiny_model(how), {.seed = kSeed, .micro_batches = 2}, mesh);
    train(model, 0, how.length);
    model.step();
    const at::Tensor x = tokens_of(1, 0, how.length), t = tokens_of(1, 1, how.length);
    Shown& mine = all[static_cast<std::size_t>(group.rank())];
    mine.loss = model.evaluate({x}, {t});
    const Tensors outputs = model.predict({x});
    if (!outputs.empty()) mine.outputs = outputs[0];
  });
  return all;
}

TEST(ComposeContext, PredictsAllPositionsOnEachRankAndEvaluatesTheirMean) {
  const Shown one = shown_under({}, 1)[0];
  const auto both = shown_under({{"cp", 2}}, 2), staged = shown_under({{"pp", 2}, {"cp", 2}}, 4);
  for (const Shown& some : {both[0], both[1], staged[2], staged[3]}) {
    ASSERT_EQ(some.outputs.sizes(), one.outputs.sizes());
    EXPECT_TRUE(at::allclose(some.outputs, one.outputs, 1e-12, 1e-12));
    EXPECT_NEAR(some.loss, one.loss, 1e-12);
  }
  EXPECT_FALSE(staged[0].outputs.defined());
  EXPECT_EQ(both[0].loss, both[1].loss);
}

TEST(ComposeContext, ACheckpointContinuesUnderAnotherPlan) {
  const Tiny how = attending();
  ParallelModel::NamedTensors saved;
  go_on(on({{"fsdp", 2}, {"cp", 2}}, {.weights = Weights::kPrivate}), how, {0, 2}, saved);
  go_on(on({{"pp", 2}}, {.micro_batches = 2}), how, {2, 3}, saved);
  go_on(on({{"pp", 2}, {"cp", 2}, {"tp", 2}}, {.micro_batches = 2}), how, {3, kSteps}, saved);
  expect_close(named(saved), by_torch<torch::optim::AdamW>(how, adam()).weights, 1e-10,
               "three plans");
}

TEST(ComposeContext, DescribesItsPassAndRejectsUnsupportedModels) {
  replicate(2, [](const Group& group) {
    const Mesh mesh(group, {{"cp", 2}});
    const Plan plan{.context = ContextMethod::kHeads};
    const std::string text = parallelize(tiny_model(attending()), plan, mesh).describe();
    EXPECT_THAT(text, HasSubstr("split sequence: positions of every sequence are divided over "
                                "cp=2, attention by heads\n"));
    EXPECT_THAT(text, testing::Not(HasSubstr("place experts")));
    EXPECT_THAT(text, HasSubstr("replicate: gradients are averaged over cp=2, once a step"));
    const auto refused = [&](const Tiny& how, const Plan& asked) {
      return refusal([&] { parallelize(tiny_model(how), asked, mesh); }, Errc::kBadConfig);
    };
    EXPECT_THAT(refused({}, {}),
                HasSubstr("this model's blocks do not support; nearest that works: dp=2,cp=1"));
    EXPECT_THAT(refused(attending(), {.without = {"split sequence"}}),
                HasSubstr("cannot be left out on cp 2"));
  });
}

}  // namespace compose_context_test
}  // namespace weft::parallel
