// Test helpers: trains a case of axes and a plan, and compares it with one process.
#pragma once

#include <torch/optim/adamw.h>

#include "weft/parallel/compose/testing/by_torch.h"

namespace weft::parallel::internal {

using Algorithm = schedule::pipeline::Algorithm;
using Adam = torch::optim::AdamWOptions;

inline Adam adam() { return Adam(1e-2).weight_decay(0.01); }

struct Case {
  std::vector<Axis> axes;
  Plan plan;

  int size(const std::string& name) const {
    int size = 1;
    for (const Axis& axis : axes) size *= axis.name == name ? axis.size : 1;
    return size;
  }
  int world() const {
    int product = 1;
    for (const Axis& axis : axes) product *= axis.size;
    return product;
  }
  Batches batches() const { return {plan.micro_batches, size("dp") * size("fsdp") * size("ep")}; }
  std::string name() const {
    return plan::MeshLayout(world(), axes).describe() + " by " +
           schedule::pipeline::to_string(plan.schedule) + ", ZeRO-" +
           std::to_string(plan.zero_stage) + " " + to_string(plan.weights);
  }
};

inline Case on(std::vector<Axis> axes, Plan plan = {}) {
  return {std::move(axes), std::move(plan)};
}

inline Plan trained_by(const Case& c, double clip = 0) {
  Plan plan = c.plan;
  plan.seed = kSeed;
  plan.optimizer = optimizer_spec(adam(), {.max_grad_norm = clip});
  return plan;
}

// Runs all steps on all ranks of a case, and compares losses and norms on each.
inline Named steps_of(const Case& c, const Tiny& how, const Trained& expected, double most) {
  Named state;
  replicate(c.world(), [&](const Group& world) {
    const Mesh mesh(world, c.axes);
    ParallelModel model = parallelize(tiny_model(how), trained_by(c, how.clip), mesh);
    for (std::size_t step = 0; step < kSteps; ++step) {
      const double loss = train(model, static_cast<int>(step), how.length);
      EXPECT_NEAR(loss, expected.losses[step], most * expected.losses[step])
          << c.name() << ", step " << step;
      EXPECT_NEAR(model.grad_norm(), expected.norms[step], most * expected.norms[step])
          << c.name() << ", step " << step;
      EXPECT_TRUE(model.step());
    }
    const Named gradients = named(model.gradients()), all = named(model.state());
    EXPECT_EQ(model.steps(), kSteps);
    if (world.rank() > 0) return;
    expect_close(gradients, expected.gradients, most, c.name() + ", gradients");
    expect_close(all, expected.weights, most, c.name() + ", weights");
    EXPECT_EQ(all.size(), 4 * expected.weights.size() + 1) << c.name();
    state = all;
  });
  return state;
}

// Runs steps [first, last) from the state of the previous plan, and stores its own state.
inline void go_on(const Case& c, const Tiny& how, std::pair<int, int> steps,
                  ParallelModel::NamedTensors& saved) {
  ParallelModel::NamedTensors left;
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model = parallelize(tiny_model(how), trained_by(c), Mesh(group, c.axes));
    if (steps.first > 0) model.load_state(saved);
    for (int step = steps.first; step < steps.second; ++step) {
      train(model, step, how.length);
      model.step();
    }
    const auto state = model.state();
    if (group.rank() == 0) left = state;
  });
  saved = left;
}

inline Plan by(Algorithm schedule, int micro_batches, int zero_stage = 3,
               Weights weights = Weights::kAuto) {
  return {.schedule = schedule,
          .micro_batches = micro_batches,
          .zero_stage = zero_stage,
          .weights = weights};
}

}  // namespace weft::parallel::internal
