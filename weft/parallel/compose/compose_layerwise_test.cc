// LARS, LAMB, Adafactor and Muon under plans: norms of tensors that are divided over fsdp, tp and
// pp equal those of one process, to 1e-10 in float64.
#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/by_equations.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_layerwise_test {

using namespace internal;

const optim::UpdateRule kLars = optim::Lars{.lr = 0.1, .trust = 0.1, .weight_decay = 0.1},
                        kLamb = optim::Lamb{.lr = 0.01, .weight_decay = 0.1},
                        kAdafactor = optim::Adafactor{.lr = 0.05, .beta1 = 0.9},
                        kMuon = optim::Muon{.weight_decay = 0.1};

// Muon leaves the first and the last block to AdamW.
Trained expected_of(const Tiny& how, const optim::UpdateRule& rule) {
  return by_torch<engine::internal::ByEquations>(
      how, rule, {}, [](engine::internal::ByEquations& optim, const Named& weights) {
        for (const auto& [name, weight] : weights) {
          if (name.starts_with("words.") || name.starts_with("head.")) optim.leave_to_adam(weight);
        }
      });
}

void expect_equal(const Case& c, const Tiny& how, const optim::UpdateRule& rule,
                  const Trained& expected) {
  replicate(c.world(), [&](const Group& world) {
    Plan plan = c.plan;
    plan.seed = kSeed;
    plan.optimizer = optimizer_spec(rule, {});
    ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(train(model, static_cast<int>(step), how.length), expected.losses[step], 1e-9);
      EXPECT_TRUE(model.step());
    }
    const Named all = named(model.state());
    if (world.rank() == 0)
      expect_close(all, expected.weights, 1e-10, c.name() + ", " + optim::name_of(rule));
  });
}

TEST(ComposeLayerwise, EqualsOneProcessOverEveryAxis) {
  const Tiny how{.attends = true};
  for (const optim::UpdateRule& rule : {kLars, kLamb}) {
    const Trained expected = expected_of(how, rule);
    for (const Case& c : {on({{"dp", 2}, {"tp", 2}}), on({{"fsdp", 2}, {"tp", 2}}),
                          on({{"dp", 2}, {"fsdp", 2}}, {.weights = Weights::kPrivate}),
                          on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))})
      expect_equal(c, how, rule, expected);
  }
}

TEST(ComposeLayerwise, EqualsOneProcessWithExpertsOverEp) {
  const Tiny how{.experts = 4};
  const Case c = on({{"ep", 2}, {"tp", 2}});
  replicate(c.world(), [&](const Group& world) {
    ParallelModel divided =
        parallelize(tiny_model(how), {.optimizer = optimizer_spec(kLamb, {}), .seed = kSeed},
                    Mesh(world, c.axes));
    for (int step = 0; step < kSteps; ++step) {
      train(divided, step, how.length);
      divided.step();
    }
    const Named all = named(divided.state());
    if (world.rank() != 0) return;
    const Trained expected =
        by_torch<engine::internal::ByEquations>(how, kLamb, Batches{.replicas = 2}, nullptr);
    expect_close(all, expected.weights, 1e-9, "lamb over ep and tp");
  });
}

TEST(ComposeLayerwise, EqualsOneProcessForRulesOfMatrices) {
  const Tiny how;
  for (const optim::UpdateRule& rule : {kAdafactor, kMuon}) {
    const Trained expected = expected_of(how, rule);
    for (const Case& c : {on({{"dp", 2}}), on({{"dp", 2}, {"fsdp", 2}}),
                          on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))})
      expect_equal(c, how, rule, expected);
  }
}

TEST(ComposeLayerwise, RefusesMatricesThatAPlanDivides) {
  replicate(2, [](const Group& world) {
    for (const optim::UpdateRule& rule : {kAdafactor, kMuon}) {
      const Plan plan{.optimizer = optimizer_spec(rule, {})};
      expect_refused(
          [&] {
            parallelize(tiny_model({}), plan, Mesh(world, {{"tp", 2}}));
          },
          Errc::kBadConfig, "does not support tp or ep");
    }
  });
}

// With micro-shards, the norms are exact sums, so no bit depends on replicas, shards or stages. In
// float64, where a norm of other bits shows in the weights.
TEST(ComposeLayerwise, GivesTheSameBitsForAnyDivisionOfMicroShards) {
  const Tiny how;
  for (const optim::UpdateRule& rule : {kLars, kLamb, kAdafactor, kMuon}) {
    Named one;
    for (const Case& c :
         {on({{"dp", 1}}), on({{"dp", 4}}), on({{"fsdp", 2}}, {.zero_stage = 1}),
          on({{"fsdp", 4}}, {.weights = Weights::kPrivate}), on({{"pp", 2}, {"fsdp", 2}})}) {
      Named state;
      replicate(c.world(), [&](const Group& world) {
        torch::set_num_threads(1);
        Plan plan = c.plan;
        plan.seed = kSeed;
        plan.micro_shards = 8;
        plan.optimizer = optimizer_spec(rule, {});
        ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
        for (int step = 0; step < kSteps; ++step) {
          train(model, step, how.length);
          model.step();
        }
        Named mine = named(model.state());
        if (world.rank() == 0) state = std::move(mine);
      });
      if (one.empty()) one = state;
      expect_same_bits(state, one, c.name() + ", " + optim::name_of(rule));
    }
  }
}

// Saved under one plan, gone on with under another.
TEST(ComposeLayerwise, GoesOnUnderAnotherPlan) {
  const Tiny how;
  for (const optim::UpdateRule& rule : {kLamb, kAdafactor}) {
    const Trained expected = expected_of(how, rule);
    ParallelModel::NamedTensors saved;
    const auto steps = [&](const Case& c, int from, int to) {
      ParallelModel::NamedTensors left;
      replicate(c.world(), [&](const Group& group) {
        Plan plan = c.plan;
        plan.seed = kSeed;
        plan.optimizer = optimizer_spec(rule, {});
        ParallelModel model = parallelize(tiny_model(how), plan, Mesh(group, c.axes));
        if (from > 0) model.load_state(saved);
        for (int step = from; step < to; ++step) {
          train(model, step, how.length);
          model.step();
        }
        const auto state = model.state();
        if (group.rank() == 0) left = state;
      });
      saved = left;
    };
    steps(on({{"fsdp", 2}}), 0, 2);
    steps(on({{"pp", 2}}), 2, 4);
    steps(on({{"dp", 3}}), 4, kSteps);
    expect_close(named(saved), expected.weights, 1e-10, optim::name_of(rule));
  }
}

}  // namespace compose_layerwise_test
}  // namespace weft::parallel
