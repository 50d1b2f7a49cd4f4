// Every product of the forms of parallelism equals one process.
#include <torch/optim/adamw.h>

#include <chrono>

#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_test {

using namespace internal;

const std::vector<Case>& products() {
  static const std::vector<Case> all = {
      on({}),
      on({{"dp", 3}}),
      on({{"fsdp", 2}}, {.zero_stage = 1}),
      on({{"fsdp", 3}}, {.zero_stage = 2, .weights = Weights::kPrivate}),
      on({{"fsdp", 2}}),
      on({{"fsdp", 2}}, {.micro_batches = 2, .weights = Weights::kPrivate}),
      on({{"tp", 2}}, {.micro_batches = 2}),
      on({{"pp", 2}}, by(Algorithm::kGPipe, 4)),
      on({{"pp", 3}}, by(Algorithm::kOneForwardOneBackward, 4)),
      on({{"pp", 2}}, by(Algorithm::kInterleaved, 4)),
      on({{"pp", 2}}, by(Algorithm::kZeroBubbleH1, 4)),
      on({{"pp", 2}}, by(Algorithm::kZeroBubbleH2, 4)),
      on({{"pp", 2}}, by(Algorithm::kZeroBubbleV, 4)),
      on({{"pp", 2}}, by(Algorithm::kAutomatic, 4)),
      on({{"dp", 2}, {"tp", 2}}),
      on({{"dp", 2}, {"fsdp", 2}}),
      on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 2, .weights = Weights::kPrivate}),
      on({{"fsdp", 2}, {"tp", 2}}),
      on({{"pp", 2}, {"tp", 2}}, by(Algorithm::kZeroBubbleV, 3)),
      on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kOneForwardOneBackward, 3)),
      on({{"pp", 2}, {"dp", 2}},
         by(Algorithm::kInterleaved, 8)),  // more micro-batches than a replica has samples
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 3, 1)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kInterleaved, 3, 2, Weights::kPrivate)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 3, 3, Weights::kPrivate)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleV, 3, 3, Weights::kPrivate)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleH1, 3)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleH2, 3, 3, Weights::kPrivate)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleV, 3, 2, Weights::kPrivate)),
      on({{"pp", 2}, {"dp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2)),
      on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, by(Algorithm::kInterleaved, 2, 3, Weights::kPrivate)),
  };
  return all;
}

TEST(Compose, EqualsOneProcessOverEveryProductOfAxes) {
  const Tiny how;
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c : products()) steps_of(c, how, expected, 1e-10);
}

TEST(Compose, CutsStagesByMeasuredTimesIfThereIsASample) {
  const Tiny how;
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  Case c = on({{"pp", 2}, {"dp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2));
  c.plan.sample = {tokens_of(0, 0).narrow(0, 0, 1)};
  steps_of(c, how, expected, 1e-10);
  comm::replicate(2, [&](const Group& group) {
    Plan plan = by(Algorithm::kOneForwardOneBackward, 2);
    plan.sample = c.plan.sample;
    const auto model = parallelize(tiny_model(how), plan, Mesh(group, {{"pp", 2}}));
    EXPECT_NE(model.describe().find("cut by measured times"), std::string::npos)
        << model.describe();
  });
}

TEST(Compose, ClipsTheNormOfTheWholeModel) {
  Tiny how;
  const auto free = by_torch<torch::optim::AdamW>(how, adam());
  how.clip = free.norms[0] / 3;
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  EXPECT_NE(expected.losses[2], free.losses[2]);
  for (const Case& c :
       {on({{"tp", 2}}), on({{"dp", 2}}), on({{"dp", 1}}, by(Algorithm::kInterleaved, 2)),
        on({{"dp", 2}}, by(Algorithm::kZeroBubbleV, 2)),
        on({{"dp", 2}}, {.schedule = Algorithm::kGPipe, .virtual_stages = 3}),
        on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kZeroBubbleV, 2)),
        on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    steps_of(c, how, expected, 1e-10);
  }
}

TEST(Compose, TrainsInFloat32WithinItsRounding) {
  const Tiny how{.type = at::kFloat};
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c :
       {on({{"dp", 2}}), on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}},
                            by(Algorithm::kOneForwardOneBackward, 2, 3, Weights::kPrivate))}) {
    steps_of(c, how, expected, 1e-5);
  }
}

TEST(Compose, ReportsTheTimesOfAStep) {
  replicate(4, [](const Group& group) {
    ParallelModel model = parallelize(tiny_model({}), {.seed = kSeed, .micro_batches = 2},
                                      Mesh(group, {{"pp", 2}, {"dp", 2}}));
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < 3; ++step) {
      train(model, step);
      model.step();
    }
    const double all =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const ParallelModel::Times times = model.take_times();
    for (const double part : {times.forward, times.backward, times.communication})
      EXPECT_GT(part, 0);
    EXPECT_LE(times.forward + times.backward + times.communication, all);
    EXPECT_EQ(model.take_times().forward, 0) << "taken";
  });
}

TEST(Compose, OneRankAloneHasNoTimeOfCommunication) {
  replicate(1, [](const Group& group) {
    ParallelModel model =
        parallelize(tiny_model({}), {.seed = kSeed, .micro_batches = 2}, Mesh(group, {{"dp", 1}}));
    train(model, 0);
    model.step();
    const ParallelModel::Times times = model.take_times();
    EXPECT_GT(times.forward, 0);
    EXPECT_EQ(times.communication, 0);
  });
}

}  // namespace compose_test
}  // namespace weft::parallel
