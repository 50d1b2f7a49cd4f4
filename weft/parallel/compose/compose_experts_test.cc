// Expert parallelism combined with every other axis, against one process that computes the same
// micro-batches (the union over all ranks).
#include <torch/optim/adamw.h>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_experts_test {

using namespace internal;
using testing::HasSubstr;

Tiny with_experts(at::ScalarType type = at::kDouble) {
  return {.type = type, .bodies = 2, .experts = 4};
}

void compare(const Case& c, const Tiny& how, double most) {
  steps_of(c, how, by_torch<torch::optim::AdamW>(how, adam(), c.batches()), most);
}

TEST(ComposeExperts, EqualsOneProcessWithEveryOtherAxis) {
  for (const Case& c : {on({}), on({{"ep", 2}}), on({{"ep", 4}}, {.micro_batches = 2}),
                        on({{"dp", 2}}), on({{"dp", 2}, {"ep", 2}}), on({{"ep", 2}, {"tp", 2}}),
                        on({{"ep", 2}}, {.micro_batches = 2, .recompute = Recompute::kFull})}) {
    compare(c, with_experts(), 1e-10);
  }
}

TEST(ComposeExperts, EqualsOneProcessWithEveryZeroStage) {
  const std::vector<Axis> axes = {{"fsdp", 2}, {"ep", 2}};
  for (const Case& c :
       {on(axes, {.zero_stage = 1}), on(axes, {.zero_stage = 2, .weights = Weights::kPrivate}),
        on(axes, {.micro_batches = 2, .weights = Weights::kPrivate}), on(axes)}) {
    compare(c, with_experts(), 1e-10);
  }
}

TEST(ComposeExperts, EqualsOneProcessWithPipelineStages) {
  for (const Case& c :
       {on({{"pp", 2}, {"ep", 2}}, by(Algorithm::kOneForwardOneBackward, 3)),
        on({{"pp", 2}, {"ep", 2}}, by(Algorithm::kZeroBubbleV, 3)),
        on({{"pp", 2}, {"dp", 2}, {"ep", 2}}, by(Algorithm::kZeroBubbleH1, 2)),
        on({{"pp", 2}, {"ep", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2)),
        on({{"pp", 2}, {"fsdp", 2}, {"ep", 2}},
           by(Algorithm::kOneForwardOneBackward, 2, 3, Weights::kPrivate))}) {
    compare(c, with_experts(), 1e-10);
  }
}

// Five and six samples: some micro-batches have a sample on one rank only, some have none.
TEST(ComposeExperts, EqualsOneProcessIfRanksHaveNoSampleOfAMicroBatch) {
  for (const Case& c :
       {on({{"ep", 2}}, {.micro_batches = 8}), on({{"dp", 2}}, {.micro_batches = 8}),
        on({{"pp", 2}, {"ep", 2}}, by(Algorithm::kOneForwardOneBackward, 8))}) {
    compare(c, with_experts(), 1e-10);
  }
}

TEST(ComposeExperts, TrainsInFloat32WithinItsRounding) {
  for (const Case& c : {on({{"dp", 2}, {"ep", 2}}),
                        on({{"pp", 2}, {"ep", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    compare(c, with_experts(at::kFloat), 1e-5);
  }
}

TEST(ComposeExperts, ClipsTheNormOfTheWholeModelOnce) {
  Tiny how = with_experts();
  how.clip = by_torch<torch::optim::AdamW>(how, adam()).norms[0] / 3;
  compare(on({{"dp", 2}, {"ep", 2}}), how, 1e-10);
  compare(on({{"ep", 2}, {"tp", 2}}), how, 1e-10);
}

TEST(ComposeExperts, ACheckpointHasWholeExpertsAndContinuesUnderAnotherPlan) {
  const Tiny how = with_experts();
  ParallelModel::NamedTensors saved;
  go_on(on({{"ep", 4}}), how, {0, 2}, saved);
  EXPECT_EQ(named(saved).at("body.1.experts.up_proj.exp_avg").sizes(),
            (std::vector<std::int64_t>{4, 16, 8}));
  go_on(on({{"pp", 2}, {"tp", 2}}), how, {2, 3}, saved);
  go_on(on({{"fsdp", 2}, {"ep", 2}, {"tp", 2}}, {.weights = Weights::kPrivate}), how, {3, 4},
        saved);
  go_on(on({{"dp", 2}}), how, {4, kSteps}, saved);
  expect_close(named(saved), by_torch<torch::optim::AdamW>(how, adam()).weights, 1e-10,
               "four plans");
}

TEST(ComposeExperts, ARankWithoutSamplesTakesPart) {
  const auto weights_after = [](int world, const std::vector<Axis>& axes) {
    Named state;
    replicate(world, [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model(with_experts()),
                                        {.seed = kSeed, .micro_batches = 2}, Mesh(group, axes));
      const std::int64_t rows = group.rank() == 0 ? kSamples : 0;
      const double loss = model.train_step({tokens_of(0, 0).narrow(0, 0, rows)},
                                           {tokens_of(0, 1).narrow(0, 0, rows)});
      model.step();
      Named all = named(model.state());
      all["loss"] = torch::full({1}, loss, at::kDouble);
      all["evaluated"] = torch::full({1},
                                     model.evaluate({tokens_of(1, 0).narrow(0, 0, rows)},
                                                    {tokens_of(1, 1).narrow(0, 0, rows)}),
                                     at::kDouble);
      if (group.rank() == 0) state = all;
    });
    return state;
  };
  expect_close(weights_after(2, {{"ep", 2}}), weights_after(1, {}), 1e-12,
               "one of two ranks has all samples");
}

TEST(ComposeExperts, RejectsABatchWithoutSamplesOnAllRanks) {
  std::vector<std::string> said(2);
  replicate(2, [&](const Group& group) {
    ParallelModel model =
        parallelize(tiny_model(with_experts()), {.seed = kSeed}, Mesh(group, {{"ep", 2}}));
    try {
      model.train_step({tokens_of(0, 0).narrow(0, 0, 0)}, {tokens_of(0, 1).narrow(0, 0, 0)});
    } catch (const Error& error) {
      said[static_cast<std::size_t>(group.rank())] = error.message();
    }
  });
  for (const std::string& line : said) EXPECT_THAT(line, HasSubstr("no rank has a sample"));
}

TEST(ComposeExperts, DescribesItsPassAndRejectsUnsupportedModels) {
  replicate(4, [](const Group& group) {
    const Mesh mesh(group, {{"dp", 2}, {"ep", 2}});
    const std::string text = parallelize(tiny_model(with_experts()), {}, mesh).describe();
    EXPECT_THAT(
        text,
        HasSubstr(std::string(
                      "place experts: 4 experts over ep=2, balanced over 4 ranks; this rank has ") +
                  (mesh.coordinate("ep") == 0 ? "0 to 1\n" : "2 to 3\n")));
    EXPECT_THAT(text, HasSubstr("replicate: gradients are summed over dp=2 x ep=2, once a step; "
                                "experts' over dp=2 alone\n"));
    const auto refused = [&](const Tiny& how, const Plan& asked) {
      return refusal([&] { parallelize(tiny_model(how), asked, mesh); }, Errc::kBadConfig);
    };
    EXPECT_THAT(
        refused({}, {}),
        HasSubstr("ep=2 divides experts, but this model has none; nearest that works: dp=4,ep=1"));
    EXPECT_THAT(refused(with_experts(), {.without = {"place experts"}}),
                HasSubstr("cannot be left out on dp 2 x ep 2"));
  });
}

}  // namespace compose_experts_test
}  // namespace weft::parallel
