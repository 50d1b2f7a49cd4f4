// Properties that hold across plans: checkpoints, bits, random numbers, the loss scale.
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>

#include "weft/parallel/compose/testing/tiny.h"

namespace weft::parallel {
namespace plans_test {

using namespace internal;
using schedule::pipeline::Algorithm;
using testing::HasSubstr;

using Adam = torch::optim::AdamWOptions;

Plan with(Plan plan) {
  plan.seed = kSeed;
  plan.optimizer = optimizer_spec(Adam(1e-2).weight_decay(0.01), {});
  return plan;
}

struct Outcome {
  std::vector<double> losses;
  Named state;
};

// Steps [begin, end) under a plan, from a state or from the beginning.
Outcome steps_under(const std::vector<Axis>& axes, const Plan& plan, const Tiny& how, int begin = 0,
                    int end = kSteps, const Named& from = {}) {
  Outcome outcome;
  int world = 1;
  for (const Axis& axis : axes) world *= axis.size;
  replicate(world, [&](const Group& group) {
    torch::set_num_threads(1);  // the bits of a matrix product depend on it
    const Mesh mesh(group, axes);
    ParallelModel model = parallelize(tiny_model(how), with(plan), mesh);
    if (!from.empty()) model.load_state({from.begin(), from.end()});
    std::vector<double> losses;
    for (int step = begin; step < end; ++step) {
      losses.push_back(train(model, step));
      model.step();
    }
    const Named state = named(model.state());
    if (group.rank() == 0) outcome = {losses, state};
  });
  return outcome;
}

TEST(Plans, ACheckpointOfOnePlanContinuesUnderAnother) {
  const Tiny how;
  const auto whole = steps_under({}, {}, how);
  const std::vector<std::pair<std::vector<Axis>, Plan>> plans = {
      {{{"pp", 2}, {"dp", 2}}, {.schedule = Algorithm::kInterleaved, .micro_batches = 2}},
      {{{"fsdp", 2}, {"tp", 2}}, {.weights = Weights::kPrivate}},
      {{{"pp", 3}}, {.micro_batches = 3}},
      {{}, {}},
      {{{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 1}},
      {{{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, {.micro_batches = 2}}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto& [axes, plan] = plans[i];
    const auto& [other_axes, other] = plans[(i + 1) % plans.size()];
    const auto first = steps_under(axes, plan, how, 0, 2);
    const auto then = steps_under(other_axes, other, how, 2, kSteps, first.state);
    EXPECT_EQ(then.state.at("steps").item<std::int64_t>(), kSteps);
    EXPECT_EQ(then.state.at("head.norm.weight.step").item<std::int64_t>(), kSteps);
    ASSERT_EQ(then.state.size(), whole.state.size());
    expect_close(then.state, whole.state, 1e-10, "from plan " + std::to_string(i));
  }
}

TEST(Plans, AStateThatDoesNotFitIsRejectedOnAllRanks) {
  const auto state = steps_under({}, {}, {}, 0, 1).state;
  const auto refused = [&](const std::function<void(Named&)>& spoil) {
    Named bad = state;
    spoil(bad);
    std::vector<std::string> what(2);
    replicate(2, [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model({}), with({}), Mesh(group, {{"pp", 2}}));
      try {
        model.load_state({bad.begin(), bad.end()});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kInvalidArgument);
        what[static_cast<std::size_t>(group.rank())] = error.message();
      }
      EXPECT_EQ(model.steps(), 0);
      model.load_state({state.begin(), state.end()});  // and the model stays usable
      EXPECT_EQ(model.steps(), 1);
    });
    return what[0] + "; " + what[1];
  };
  EXPECT_THAT(
      refused([](Named& bad) { bad.erase("body.0.up.weight.exp_avg"); }),
      HasSubstr(
          "the state has no 'body.0.up.weight.exp_avg'; load_state: rank 0 failed: the state"));
  EXPECT_THAT(refused([](Named& bad) { bad["body.2.up.weight"] = torch::ones({3}); }),
              HasSubstr("'body.2.up.weight' has another shape"));
}

TEST(Plans, SchedulesCutsShardsAndRecomputationGiveTheSameBits) {
  const Tiny how{.dropout = 0.2, .tied = false};  // a tied weight's gradients are summed by stage
  const auto one = steps_under({}, {.micro_batches = 3}, how);
  const std::vector<std::pair<std::vector<Axis>, Plan>> same = {
      {{}, {.micro_batches = 3, .recompute = Recompute::kFull}},
      {{{"pp", 2}}, {.micro_batches = 3}},
      {{{"pp", 3}},
       {.schedule = Algorithm::kZeroBubbleH1, .micro_batches = 3, .recompute = Recompute::kFull}},
      {{{"pp", 2}}, {.schedule = Algorithm::kInterleaved, .micro_batches = 3, .cuts = {1, 3, 4}}},
      {{{"pp", 2}}, {.schedule = Algorithm::kZeroBubbleV, .micro_batches = 3}}};
  for (const auto& [axes, plan] : same) {
    const auto other = steps_under(axes, plan, how);
    const std::string what = axes.empty() ? "alone"
                                          : std::to_string(axes[0].size) + " stages by " +
                                                schedule::pipeline::to_string(plan.schedule);
    EXPECT_EQ(other.losses, one.losses) << what;
    expect_same_bits(other.state, one.state, what);
  }
  // Shards give the same bits for any ZeRO stage and placement, also with pipeline stages.
  const auto sharded = steps_under({{"fsdp", 2}}, {.micro_batches = 3, .zero_stage = 1}, how);
  for (const Plan& plan :
       {Plan{.micro_batches = 3, .zero_stage = 2, .weights = Weights::kPrivate},
        Plan{.micro_batches = 3, .weights = Weights::kPrivate},
        Plan{.micro_batches = 3, .weights = Weights::kShared, .recompute = Recompute::kFull}}) {
    expect_same_bits(steps_under({{"fsdp", 2}}, plan, how).state, sharded.state,
                     "ZeRO-" + std::to_string(plan.zero_stage));
    expect_same_bits(steps_under({{"pp", 2}, {"fsdp", 2}}, plan, how).state, sharded.state,
                     "2 stages, ZeRO-" + std::to_string(plan.zero_stage));
  }
}

TEST(Plans, DropoutIsTheSameForAnySplitOfLayers) {
  const Tiny how{.dropout = 0.2};
  const auto one = steps_under({{"dp", 2}}, {.micro_batches = 2}, how);
  const auto split = steps_under({{"pp", 2}, {"dp", 2}, {"tp", 2}},
                                 {.micro_batches = 2, .recompute = Recompute::kFull}, how);
  expect_close(split.state, one.state, 1e-10, "dropout");
  EXPECT_NE(one.losses, steps_under({{"dp", 2}}, {.micro_batches = 2}, {}).losses);
}

TEST(Plans, AccumulatedCallsAreOneBatch) {
  const auto whole = steps_under({{"fsdp", 2}}, {.weights = Weights::kPrivate}, {}, 0, 1);
  for (const auto& axes :
       {std::vector<Axis>{{"fsdp", 2}}, std::vector<Axis>{{"pp", 2}, {"dp", 2}}}) {
    replicate(axes.size() == 1 ? 2 : 4, [&](const Group& group) {
      const Mesh mesh(group, axes);
      ParallelModel model =
          parallelize(tiny_model({}), with({.weights = Weights::kPrivate, .accumulate = 2}), mesh);
      model.zero_grad();
      for (int again = 0; again < 2; ++again) {  // the same batch twice: the mean is the batch's
        const int replica = mesh.coordinate(axes.back().name);
        const double loss = model.train_step({share_of(tokens_of(0, 0), replica, 2)},
                                             {share_of(tokens_of(0, 1), replica, 2)});
        EXPECT_NEAR(loss, whole.losses[0], 1e-12);
      }
      model.step();
      const Named state = named(model.state());
      if (group.rank() == 0) expect_close(state, whole.state, 1e-10, "accumulated");
    });
  }
}

// A batch whose loss on one replica is multiplied by `factor`.
Tensors targets_of(const Mesh& mesh, int step, double factor) {
  const int replica = mesh.coordinate("dp"), replicas = mesh.size("dp");
  const at::Tensor words = share_of(tokens_of(step, 1), replica, replicas);
  return {words, torch::full({words.size(0)}, replica == 1 ? factor : 1.0, at::kFloat)};
}

TEST(Plans, AnOverflowOnOneRankSkipsTheStepOnAllAndHalvesTheScale) {
  const Tiny how{.type = at::kFloat};
  const std::vector<Axis> axes = {{"pp", 2}, {"dp", 2}};
  replicate(4, [&](const Group& group) {
    const Mesh mesh(group, axes);
    const auto make = [&] {
      return parallelize(tiny_model(how),
                         with({.micro_batches = 2, .loss_scale = LossScaleOptions{.interval = 2}}),
                         mesh);
    };
    ParallelModel model = make();
    EXPECT_EQ(model.loss_scale(), 65536);
    Named before;
    const auto step = [&](double factor) {
      model.zero_grad();
      model.train_step({share_of(tokens_of(0, 0), mesh.coordinate("dp"), 2)},
                       targets_of(mesh, 0, factor));
      before = named(model.state());
      return model.step();
    };
    EXPECT_TRUE(step(1));
    EXPECT_FALSE(step(1e36));  // 65536 times that is no float32
    EXPECT_EQ(model.loss_scale(), 32768);
    EXPECT_EQ(model.steps(), 1);
    const Named after = named(model.state());
    if (group.rank() == 0) {
      before.erase("loss_scale");
      for (const auto& [name, tensor] : before)
        EXPECT_TRUE(at::equal(tensor, after.at(name)) || name == "loss_scale.good_steps") << name;
    }
    EXPECT_TRUE(step(1));
    EXPECT_EQ(model.loss_scale(), 32768);
    EXPECT_TRUE(step(1));
    EXPECT_EQ(model.loss_scale(), 65536);
    EXPECT_FALSE(step(std::numeric_limits<double>::infinity()));
    EXPECT_FALSE(step(std::numeric_limits<double>::quiet_NaN()));
    EXPECT_EQ(model.loss_scale(), 16384);
  });
}

TEST(Plans, TheLossScaleIsInTheCheckpointAndDoesNotChangeBits) {
  const Tiny how{.type = at::kFloat};
  const Plan scaled{.loss_scale = LossScaleOptions{.interval = 2}};
  const auto plain = steps_under({{"fsdp", 2}}, {}, how),
             with_scale = steps_under({{"fsdp", 2}}, scaled, how);
  EXPECT_EQ(plain.losses, with_scale.losses);  // powers of two
  EXPECT_EQ(with_scale.state.at("loss_scale").item<double>(), 65536 * 4);
  EXPECT_EQ(with_scale.state.at("loss_scale.good_steps").item<std::int64_t>(), 1);
  const auto first = steps_under({{"tp", 2}}, scaled, how, 0, 3);
  const auto then = steps_under({{"pp", 2}}, scaled, how, 3, kSteps, first.state);
  EXPECT_EQ(then.state.at("loss_scale").item<double>(), 65536 * 4);
  EXPECT_EQ(then.state.at("loss_scale.good_steps").item<std::int64_t>(), 1);
}

TEST(Plans, NarrowerTypesTrainCloseToFloat32) {
  const Tiny how{.type = at::kFloat};
  const auto full = steps_under({}, {}, how);
  for (const Precision precision : {Precision::kBf16, Precision::kF16}) {
    const auto narrow = steps_under(
        {{"pp", 2}, {"tp", 2}},
        {.micro_batches = 2, .recompute = Recompute::kFull, .precision = precision}, how);
    EXPECT_NE(narrow.losses, full.losses);
    for (std::size_t step = 0; step < kSteps; ++step)
      EXPECT_NEAR(narrow.losses[step], full.losses[step], 0.03 * full.losses[step]);
    EXPECT_EQ(narrow.state.count("loss_scale"), precision == Precision::kF16 ? 1U : 0U);
  }
}

TEST(Plans, ProcessesTrainLikeThreads) {
  const std::vector<Axis> axes = {{"pp", 2}, {"fsdp", 2}, {"tp", 2}};
  const Plan plan{.micro_batches = 2, .recompute = Recompute::kFull};
  const auto threads = steps_under(axes, plan, {});
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = comm::fork_ranks(8, transport, [&](const Group& group) {
      torch::set_num_threads(1);
      const Mesh mesh(group, axes);
      ParallelModel model = parallelize(tiny_model({}), with(plan), mesh);
      for (int step = 0; step < kSteps; ++step) {
        if (std::abs(train(model, step) - threads.losses[static_cast<std::size_t>(step)]) > 1e-10)
          return 1;
        model.step();
      }
      const Named state = named(model.state());
      if (group.rank() > 0) return state.empty() ? 0 : 2;
      for (const auto& [name, tensor] : threads.state) {
        if (!at::allclose(state.at(name), tensor, 1e-10, 1e-10)) return 3;
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(8, 0)) << transport;
  }
}

TEST(Plans, APassDescribesItselfAndCanBeLeftOutIfNothingDependsOnIt) {
  replicate(2, [](const Group& group) {
    const Mesh mesh(group, {{"pp", 2}});
    const Plan asked{.micro_batches = 2, .recompute = Recompute::kFull};
    const std::string text = parallelize(tiny_model({}), with(asked), mesh).describe();
    EXPECT_THAT(
        text,
        HasSubstr(
            "cut stages: 5 blocks in 2 stages over pp=2 by 1f1b, 2 micro-batches; this rank has " +
            std::string(group.rank() == 0 ? "words to body.0" : "body.1 to head")));
    for (const char* idle : {"split layers", "replicate", "nothing"})
      EXPECT_THAT(text, testing::Not(HasSubstr(idle)));
    EXPECT_THAT(text,
                HasSubstr(std::string("recompute: ") + (group.rank() == 0 ? "2 of 2" : "2 of 3") +
                          " blocks recompute everything"));
    Plan without = asked;
    without.without = {"recompute"};
    EXPECT_THAT(parallelize(tiny_model({}), with(without), mesh).describe(),
                HasSubstr("recompute: left out"));
    for (const auto& [name, why] : {std::pair{"connect stages", "cannot be left out on pp 2"},
                                    std::pair{"recomputed", "did you mean 'recompute'?"}}) {
      without.without = {name};
      try {
        parallelize(tiny_model({}), with(without), mesh);
        FAIL() << name;
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr(why));
      }
    }
  });
  EXPECT_EQ(std::string(passes().front().name), "cut stages");
}

TEST(Plans, PlansThatCannotWorkAreRejectedBeforeBlocksAreMade) {
  replicate(3, [](const Group& group) {
    try {
      parallelize(tiny_model({}), with({}), Mesh(group, {{"tp", 3}}));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      EXPECT_THAT(
          error.message(),
          HasSubstr("hidden = 16 cannot be split over tp=3; nearest that works: dp=3,tp=1"));
    }
  });
}

TEST(Plans, AnExceptionInOneStageEndsAllRanksOfTheMesh) {
  try {
    replicate(4, [](const Group& group) {
      const Mesh mesh(group, {{"pp", 2}, {"dp", 2}});
      BlockModel model = tiny_model({});
      model.loss = [&](const Tensors& y, const Tensors&, const Contexts&) -> at::Tensor {
        if (mesh.coordinate("dp") == 1) throw std::runtime_error("the loss is bad");
        return y[0].sum();
      };
      ParallelModel composed = parallelize(model, with({.micro_batches = 2}), mesh);
      train(composed, 0);
      composed.step();
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the loss is bad");
  }
}

}  // namespace plans_test
}  // namespace weft::parallel
