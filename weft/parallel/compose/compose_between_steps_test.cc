// A program may do these things around the steps of a ParallelModel: they count, or are errors.
#include <gmock/gmock.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <sstream>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/own_net.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace compose_between_steps_test {

namespace nn = torch::nn;
using namespace own_net;
using testing::HasSubstr;

nn::Sequential net() {
  nn::Sequential all(nn::Linear(3, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 2));
  fill(*all);
  return all;
}

void step(ParallelModel& model) {
  model.zero_grad();
  backward(model);
  EXPECT_TRUE(model.step());
}

// A file of a whole model with other values.
std::string file_of_other_weights() {
  nn::Sequential other = net();
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : other->parameters()) parameter.mul_(0.5);
  std::ostringstream file;
  torch::save(other, file);
  return file.str();
}

void load(nn::Sequential& own, const std::string& file) {
  std::istringstream in(file);
  torch::load(own, in);
}

std::string refusal_of_one_rank(const Plan& plan, const std::function<void(ParallelModel&)>& act) {
  std::string what = "accepted";
  replicate(1, [&](const Group& world) {
    nn::Sequential own = net();
    ParallelModel model = parallelize(model_of(own), plan, Mesh(world, {{"dp", 1}}));
    what = refusal([&] { act(model); });
  });
  return what;
}

TEST(ComposeBetweenSteps, GradientsThatWereClippedAreNotAddedTo) {
  const Plan plan = trained_by(on({}), /*clip=*/1e-3);
  EXPECT_THAT(refusal_of_one_rank(plan,
                                  [](ParallelModel& model) {
                                    step(model);
                                    backward(model);
                                  }),
              HasSubstr("it would add to gradients that the last step() has clipped"));
}

TEST(ComposeBetweenSteps, AModelBeginsWithoutTheGradientsOfAnEarlierOne) {
  replicate(2, [](const Group& world) {
    std::vector<nn::Sequential> nets{net(), net()};
    for (nn::Sequential& own : nets) {
      std::optional<ParallelModel> model(
          parallelize(model_of(own), trained_by(on({})), Mesh(world, {{"dp", 2}})));
      step(*model);
      if (&own == &nets[0]) model->zero_grad();
      model.reset();
      model.emplace(parallelize(model_of(own), trained_by(on({})), Mesh(world, {{"dp", 2}})));
      backward(*model);
      EXPECT_TRUE(model->step());
      world.barrier();
    }
    const auto a = nets[0]->parameters(), b = nets[1]->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  });
}

TEST(ComposeBetweenSteps, TwoModelsOfOneModuleDoNotTrainBesideEachOther) {
  for (const Case& c : {on({{"dp", 2}}), on({{"fsdp", 2}}, {.zero_stage = 2}), on({{"fsdp", 2}})}) {
    replicate(2, [&](const Group& world) {
      nn::Sequential own = net();
      std::optional<ParallelModel> first(
          parallelize(model_of(own), trained_by(c), Mesh(world, c.axes)));
      ParallelModel second = parallelize(model_of(own), trained_by(c), Mesh(world, c.axes));
      for (ParallelModel* const model : {&*first, &second}) {
        EXPECT_THAT(refusal([&] { backward(*model); }),
                    HasSubstr("another ParallelModel has some of this model's modules"));
      }
      first.reset();
      step(second);
      world.barrier();
    });
  }
}

TEST(ComposeBetweenSteps, ATrainStepWithoutGradientsIsRefused) {
  EXPECT_THAT(refusal_of_one_rank(trained_by(on({})),
                                  [](ParallelModel& model) {
                                    const torch::NoGradGuard no_grad;
                                    backward(model);
                                  }),
              HasSubstr("gradients are off in this thread"));
}

TEST(ComposeBetweenSteps, InputsAndTargetsThatNeedAGradientAreRefused) {
  const at::Tensor x = inputs(), t = x.narrow(1, 0, 2).clone();
  EXPECT_THAT(refusal_of_one_rank(trained_by(on({})),
                                  [&](ParallelModel& model) {
                                    model.train_step({x.clone().requires_grad_()}, {t});
                                  }),
              HasSubstr("the inputs require a gradient, but none leaves the model"));
  EXPECT_THAT(refusal_of_one_rank(trained_by(on({})),
                                  [&](ParallelModel& model) {
                                    model.train_step({x}, {t.clone().requires_grad_()});
                                  }),
              HasSubstr("the targets require a gradient, but none leaves the model"));
}

TEST(ComposeBetweenSteps, AccumulationDoesNotChangeWithinAStep) {
  Plan plan = trained_by(on({}));
  plan.accumulate = 2;
  EXPECT_THAT(refusal_of_one_rank(plan,
                                  [](ParallelModel& model) {
                                    backward(model);
                                    model.set_accumulate(1);
                                  }),
              HasSubstr("call it before the first train_step() of a step"));
}

TEST(ComposeBetweenSteps, AnEvaluationBeforeStepLeavesTheNoiseAsItIs) {
  replicate(2, [](const Group& world) {
    Plan plan = trained_by(on({}));
    plan.measure_noise = true;
    std::vector<double> inverse;
    for (const bool evaluates : {false, true}) {
      nn::Sequential own = net();
      ParallelModel model = parallelize(model_of(own), plan, Mesh(world, {{"dp", 2}}));
      backward(model);
      const at::Tensor one = inputs().narrow(0, 0, 1);
      if (evaluates) model.evaluate({one}, {one.narrow(1, 0, 2)});
      EXPECT_TRUE(model.step());
      inverse.push_back(model.gradient_noise()->inverse_samples);
    }
    EXPECT_EQ(inverse[0], inverse[1]);
  });
}

TEST(ComposeBetweenSteps, APredictionMayHaveFewerSamplesThanMicroBatches) {
  replicate(2, [](const Group& world) {
    nn::Sequential own = net(), alone = net();
    ParallelModel model = parallelize(model_of(own), trained_by(on({}, {.micro_batches = 4})),
                                      Mesh(world, {{"pp", 2}}));
    for (const std::int64_t rows : {3, 0, 1, 7}) {
      const at::Tensor x = inputs().narrow(0, 0, rows);
      const Tensors outputs = model.predict({x});
      ASSERT_EQ(outputs.size(), world.rank() == 1 ? 1 : 0);
      if (outputs.empty()) continue;
      const at::Tensor expected = alone->forward(x);
      ASSERT_EQ(outputs[0].sizes(), expected.sizes());
      EXPECT_TRUE(at::allclose(outputs[0], expected, 1e-5, 1e-6));
    }
    step(model);
  });
}

// After a step, the modules of other stages have no values.
TEST(ComposeBetweenSteps, AFileOfTheWholeModelIsLoadedOnAllStages) {
  const std::string file = file_of_other_weights();
  for (const bool gathers : {false, true}) {
    replicate(2, [&](const Group& world) {
      nn::Sequential own = net(), other = net();
      load(other, file);
      ParallelModel model = parallelize(model_of(own), trained_by(on({}, {.micro_batches = 1})),
                                        Mesh(world, {{"pp", 2}}));
      step(model);
      load(own, file);
      if (gathers) model.gather();
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(own->forward(inputs()), other->forward(inputs())));
      EXPECT_NEAR(
          model.evaluate({inputs()}, {inputs().narrow(1, 0, 2)}),
          torch::mse_loss(other->forward(inputs()), inputs().narrow(1, 0, 2)).item<double>(), 1e-6);
      world.barrier();
    });
  }
}

TEST(ComposeBetweenSteps, AFileThatTheRanksOfAStageHaveNotLoadedIsAnError) {
  const std::string file = file_of_other_weights();
  const std::vector<std::pair<const char*, std::function<void(ParallelModel&)>>> calls{
      {"step", step},
      {"gather", [](ParallelModel& model) { model.gather(); }},
      {"take_changes", [](ParallelModel& model) { model.take_changes(); }}};
  for (const auto& [name, call] : calls) {
    for (const bool skips : {true, false}) {
      replicate(2, [&](const Group& world) {
        nn::Sequential own = net();
        Plan plan = trained_by(on({}, {.micro_batches = 1}));
        plan.skip_not_finite = skips;
        ParallelModel model = parallelize(model_of(own), plan, Mesh(world, {{"pp", 2}}));
        step(model);
        if (world.rank() == 0) load(own, file);
        EXPECT_THAT(
            refusal([&] { call(model); }),
            HasSubstr("was loaded on rank 0, but not on the ranks that train it; load weights "
                      "on all ranks"))
            << name << skips;
      });
    }
  }
}

// Nothing else compares the rates of different stages.
TEST(ComposeBetweenSteps, OtherLearningRatesOfStagesAreAnErrorWithoutSkippedStepsToo) {
  replicate(2, [](const Group& world) {
    nn::Sequential own = net();
    Plan plan = trained_by(on({}, {.micro_batches = 1}));
    plan.skip_not_finite = false;
    ParallelModel model = parallelize(model_of(own), plan, Mesh(world, {{"pp", 2}}));
    model.set_lr(world.rank() == 0 ? 0.1 : 0.2);
    EXPECT_THAT(refusal([&] { step(model); }), HasSubstr("call set_lr() alike on all ranks"));
  });
}

}  // namespace compose_between_steps_test
}  // namespace weft::parallel::internal
