// A gradient that is not finite on one rank: all ranks skip the step together, under every plan.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <limits>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/parallel/compose/testing/own_net.h"
#include "weft/parallel/compose/testing/parity.h"
#include "weft/parallel/compose/testing/tampered.h"

namespace weft::parallel::internal {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

// Steps on batches 0, 1 and 2. The gradient of batch 1 gets `number` on rank `culprit`.
Named with_a_bad_batch(const Group& world, const Case& c, int culprit, double number, double clip,
                       at::ScalarType type) {
  const auto how = std::make_shared<Tampering>();
  how->parameter = "body.2.norm.weight";
  ParallelModel model = parallelize(tampered(tiny_model({.type = type}), how), trained_by(c, clip),
                                    Mesh(world, c.axes));
  for (int batch = 0; batch < 3; ++batch) {
    const bool bad = batch == 1;
    if (bad && world.rank() == culprit)
      how->change = [number](at::Tensor& gradient) { gradient.view(-1)[3] = number; };
    train(model, batch, kLength);
    EXPECT_EQ(model.step(), !bad) << c.name() << ", batch " << batch;
    how->change = nullptr;
    EXPECT_EQ(model.not_finite(), bad ? (std::map<int, std::string>{{culprit, how->parameter}})
                                      : (std::map<int, std::string>{}))
        << c.name();
  }
  EXPECT_EQ(model.steps(), 2);
  return named(model.state());
}

Named without_it(const Group& world, const Case& c, double clip, at::ScalarType type) {
  ParallelModel model =
      parallelize(tiny_model({.type = type}), trained_by(c, clip), Mesh(world, c.axes));
  for (const int batch : {0, 2}) {
    train(model, batch, kLength);
    EXPECT_TRUE(model.step());
  }
  return named(model.state());
}

void expect_skip(const Group& world, const Case& c, int culprit, double number, double clip = 0,
                 at::ScalarType type = at::kDouble) {
  const Named wanted = without_it(world, c, clip, type),
              got = with_a_bad_batch(world, c, culprit, number, clip, type);
  if (world.rank() == 0) expect_same_bits(got, wanted, c.name());
}

TEST(SkipNotFinite, AllRanksSkipTheStepAsIfItHadNotBeenUnderAnyPlan) {
  const Weights kPrivate = Weights::kPrivate;
  for (const Case& c :
       {on({{"dp", 1}}), on({{"dp", 3}}), on({{"dp", 2}}, {.weights = kPrivate}),
        on({{"fsdp", 2}}, {.zero_stage = 1}), on({{"fsdp", 2}}, {.zero_stage = 2}),
        on({{"fsdp", 2}}, {.zero_stage = 3, .weights = kPrivate}),
        on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 3}), on({{"tp", 2}}),
        on({{"dp", 2}, {"tp", 2}}), on({{"dp", 2}}, {.micro_batches = 2, .micro_shards = 4})}) {
    replicate(c.world(), [&](const Group& group) {
      expect_skip(group, c, c.world() - 1, kNan);
      expect_skip(group, c, 0, kInfinity);
    });
  }
}

TEST(SkipNotFinite, AStageOfAPipelineMakesTheOthersSkip) {
  const Case c = on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kOneForwardOneBackward, 2));
  replicate(c.world(), [&](const Group& group) {
    // body.2 is in the second stage: of the first replica on rank 2, of the second on rank 3.
    const int culprit = 3;
    expect_skip(group, c, culprit, kNan);
  });
}

TEST(SkipNotFinite, WorksWithClipping) {
  for (const Case& c : {on({{"dp", 2}}), on({{"fsdp", 2}}, {.zero_stage = 2}),
                        on({{"dp", 2}}, {.data_parallel = {.update_in_backward = true}})}) {
    replicate(c.world(), [&](const Group& group) { expect_skip(group, c, 1, kNan, 0.1); });
  }
}

TEST(SkipNotFinite, WorksOverMessages) {
  const Case c = on({{"dp", 2}});
  comm::replicate_over_tcp(2, [&](const Group& group) { expect_skip(group, c, 1, -kInfinity); });
}

// The first batch of the step has changed them already.
TEST(SkipNotFinite, LeavesTheRunningStatisticsOfBeforeTheFirstBatchOfTheStep) {
  for (const int micro_shards : {0, 4}) {
    replicate(2, [&](const Group& group) {
      const torch::nn::Sequential own(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2));
      ParallelModel model =
          parallelize(own_net::model_of(own), {.micro_shards = micro_shards, .accumulate = 2},
                      Mesh(group, {{"dp", 2}}));
      const at::Tensor x = own_net::share_of_replica(model), t = x.narrow(1, 0, 2);
      const auto step = [&](const at::Tensor& second) {
        model.zero_grad();
        model.train_step({x}, {t});
        model.train_step({second}, {t});
        return model.step();
      };
      EXPECT_TRUE(step(x));
      const Named before = named(model.state());
      EXPECT_FALSE(step(x * kNan));
      expect_same_bits(named(model.state()), before, std::to_string(micro_shards));
    });
  }
}

// What a codec has not sent of earlier gradients is sent later, as if the batch had not been.
TEST(SkipNotFinite, LeavesTheMemoryOfCodecsAsItWas) {
  for (const char* codec : {"topk:0.1", "int4:8", "powersgd:1"}) {
    for (Case c : {on({{"dp", 2}}), on({{"pp", 2}, {"dp", 2}})}) {
      c.plan.codec = codec;
      comm::replicate_over_tcp(c.world(), [&](const Group& group) {
        expect_skip(group, c, group.size() - 1, kNan, 0, at::kFloat);
      });
    }
  }
}

TEST(SkipNotFinite, ASumThatLeavesTheRangeOfF16SkipsTheStep) {
  for (Case c : {on({{"dp", 2}}), on({{"dp", 2}, {"fsdp", 2}})}) {
    c.plan.codec = "f16";
    comm::replicate_over_tcp(c.world(), [&](const Group& group) {
      const auto how = std::make_shared<Tampering>();
      how->parameter = "body.0.norm.weight";
      ParallelModel model = parallelize(tampered(tiny_model({.type = at::kFloat}), how),
                                        trained_by(c), Mesh(group, c.axes));
      for (int step = 0; step < 3; ++step) {
        const bool bad = step == 1;
        if (bad) how->change = [](at::Tensor& gradient) { gradient.view(-1)[3] = 1e6; };
        train(model, step, kLength);
        how->change = nullptr;
        EXPECT_EQ(model.step(), !bad) << c.name() << ", step " << step;
        EXPECT_TRUE(model.not_finite().empty());
      }
    });
  }
}

TEST(SkipNotFinite, AHugeGradientCountsBecauseSumsWouldOverflow) {
  const Case c = on({{"dp", 2}});
  replicate(2, [&](const Group& group) {
    // The tiny model computes in float64, where it is an ordinary number.
    const auto how = std::make_shared<Tampering>();
    how->parameter = "body.0.norm.weight";
    ParallelModel model = parallelize(tampered(tiny_model({.type = at::kFloat}), how),
                                      trained_by(c), Mesh(group, c.axes));
    if (group.rank() == 1) how->change = [](at::Tensor& gradient) { gradient.fill_(3e38f); };
    train(model, 0, kLength);
    EXPECT_FALSE(model.step());
    EXPECT_EQ(model.not_finite(), (std::map<int, std::string>{{1, how->parameter}}));
  });
}

TEST(SkipNotFinite, CanBeSwitchedOff) {
  Case c = on({{"dp", 2}});
  c.plan.skip_not_finite = false;
  replicate(2, [&](const Group& group) {
    const auto how = std::make_shared<Tampering>();
    how->parameter = "body.0.norm.weight";
    ParallelModel model =
        parallelize(tampered(tiny_model({}), how), trained_by(c), Mesh(group, c.axes));
    how->change = [](at::Tensor& gradient) { gradient.fill_(kNan); };
    train(model, 0, kLength);
    EXPECT_TRUE(model.step());
  });
}

// The ranks of a replica have no gradients in common that could tell them.
TEST(LearningRate, OtherRatesOnRanksOfAReplicaAreAnError) {
  for (const Case& c : {on({{"pp", 2}}), on({{"tp", 2}})}) {
    const auto ranks = [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
      if (group.rank() == 1) model.set_lr(model.lr() / 2);
      train(model, 0, kLength);
      model.step();
    };
    expect_refused([&] { replicate(2, ranks); }, Errc::kInvalidArgument,
                   "on another; call set_lr() alike on all ranks");
  }
}

}  // namespace
}  // namespace weft::parallel::internal
