// The modules that the caller holds, during training and after it.
#include <gmock/gmock.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/slice.h"
#include "weft/parallel/compose/testing/own_net.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace compose_gather_test {

namespace nn = torch::nn;
using namespace own_net;
using testing::HasSubstr;

// The same on every rank and thread.
nn::Sequential net() {
  nn::Sequential all(nn::Linear(3, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 8), nn::ReLU(),
                     nn::Linear(8, 2));
  fill(*all);
  return all;
}

void step(ParallelModel& model) {
  backward(model);
  EXPECT_TRUE(model.step());
  model.zero_grad();
}

// What the caller's own module answers, without weft.
at::Tensor answer(nn::Sequential own) {
  const torch::NoGradGuard no_grad;
  own->eval();
  return own->forward(inputs());
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      on({{"dp", 2}}),
      on({{"dp", 2}}, {.weights = Weights::kShared}),
      on({{"fsdp", 2}}, {.zero_stage = 1}),
      on({{"fsdp", 2}}, {.zero_stage = 2, .weights = Weights::kPrivate}),
      on({{"fsdp", 2}}, {.weights = Weights::kPrivate}),
      on({{"fsdp", 2}}, {.weights = Weights::kShared}),
      on({{"pp", 2}}, {.micro_batches = 1}),
      on({{"pp", 2}}, {.schedule = Algorithm::kInterleaved, .micro_batches = 2}),
      on({{"pp", 2}, {"dp", 2}}, {.micro_batches = 1}),
      on({{"pp", 2}, {"fsdp", 2}}, {.micro_batches = 1, .weights = Weights::kPrivate})};
  return all;
}

double loss_of(const nn::Sequential& own) {
  return torch::mse_loss(answer(own), inputs().narrow(1, 0, 2)).item<double>();
}

TEST(ComposeGather, MakesTheCallersModuleTheTrainedOneUnderEveryPlan) {
  const double untrained = loss_of(net());
  for (const Case& c : cases()) {
    replicate(c.world(), [&](const Group& world) {
      nn::Sequential own = net();
      double loss = 0;
      {
        ParallelModel model = parallelize(model_of(own), trained_by(c), Mesh(world, c.axes));
        for (int i = 0; i < 3; ++i) step(model);
        const at::Tensor x = share_of_replica(model);
        loss = model.evaluate({x}, {x.narrow(1, 0, 2)});
        model.gather();
        EXPECT_NEAR(loss_of(own), loss, 1e-6) << c.name();
        EXPECT_EQ(model.gather_bytes(), 0) << c.name();
        world.barrier();
      }
      EXPECT_NEAR(loss_of(own), loss, 1e-6) << c.name() << ", after the end of the model";
      EXPECT_GT(std::abs(loss - untrained), 1e-3) << c.name();
    });
  }
}

TEST(ComposeGather, LetsTrainingGoOn) {
  for (const Case& c : cases()) {
    replicate(c.world(), [&](const Group& world) {
      nn::Sequential through = net(), gathered = net();
      ParallelModel a = parallelize(model_of(through), trained_by(c), Mesh(world, c.axes)),
                    b = parallelize(model_of(gathered), trained_by(c), Mesh(world, c.axes));
      for (int i = 0; i < 3; ++i) {
        step(a);
        step(b);
        b.gather();
      }
      a.gather();
      EXPECT_TRUE(at::equal(answer(through), answer(gathered))) << c.name();
    });
  }
}

TEST(ComposeGather, FindsAValueThatOneRankHasWritten) {
  for (const Case& c : cases()) {
    if (c.world() > 2 || c.axes[0].name == "pp") continue;
    bool has_values = true;
    const std::string what = refusal([&] {
      replicate(2, [&](const Group& world) {
        nn::Sequential own = net();
        ParallelModel model = parallelize(model_of(own), trained_by(c), Mesh(world, c.axes));
        step(model);
        at::Tensor weight = own->ptr(3)->as<nn::LinearImpl>()->weight;
        world.barrier();
        if (!checkpoint::has_values(weight)) {
          has_values = false;
        } else if (world.rank() == 1) {
          weight.data()[2][3] += 0.5;
        }
        world.barrier();
        model.gather();
      });
    });
    EXPECT_EQ(what == "accepted", !has_values) << c.name() << what;
  }
}

TEST(ComposeGather, IsNeededBeforeModulesOfOtherStagesAnswer) {
  replicate(2, [&](const Group& world) {
    nn::Sequential own = net();
    ParallelModel model = parallelize(model_of(own), trained_by(on({}, {.micro_batches = 1})),
                                      Mesh(world, {{"pp", 2}}));
    step(model);
    std::string what;
    try {
      answer(own);
    } catch (const Error& error) {
      what = error.what();
    }
    EXPECT_THAT(what, HasSubstr("has no trained values on this rank, since other ranks train it; "
                                "call ParallelModel::gather()"));
    EXPECT_GT(model.gather_bytes(), 0);
    model.refuse("save the weights");
    what.clear();
    try {
      answer(own);
    } catch (const Error& error) {
      what = error.what();
    }
    EXPECT_THAT(what, HasSubstr("other ranks train it; save the weights"));
    model.gather();
    answer(own);
  });
}

// A second model of the same blocks must be given values; what it is not given is never taken for
// weights.
TEST(ComposeGather, LeavesNoMadeUpValuesForASecondModel) {
  replicate(2, [&](const Group& world) {
    nn::Sequential own = net();
    const Plan plan = trained_by(on({}, {.micro_batches = 1}));
    std::optional<ParallelModel> first(parallelize(model_of(own), plan, Mesh(world, {{"pp", 2}})));
    step(*first);
    first.reset();
    ParallelModel second = parallelize(model_of(own), trained_by(on({})), Mesh(world, {{"dp", 2}}));
    const at::Tensor x = inputs();
    EXPECT_TRUE(std::isnan(second.evaluate({x}, {x.narrow(1, 0, 2)})));
  });
}

}  // namespace compose_gather_test
}  // namespace weft::parallel::internal
