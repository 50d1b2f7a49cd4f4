// Every product of the forms of parallelism trains as one process does.
#include "weft/parallel/compose/internal/tiny.h"

namespace weft::parallel {
namespace {

using namespace internal;
using schedule::pipeline::Algorithm;
using testing::HasSubstr;

using Adam = torch::optim::AdamWOptions;
Adam adam() { return Adam(1e-2).weight_decay(0.01); }

struct Case {
  std::vector<Axis> axes;
  Plan plan;

  int world() const {
    int product = 1;
    for (const Axis& axis : axes) product *= axis.size;
    return product;
  }
  std::string name() const {
    return plan::MeshLayout(world(), axes).describe() + " by " + schedule::pipeline::to_string(plan.schedule) + ", ZeRO-" +
           std::to_string(plan.zero_stage) + " " + plan.form;
  }
};

Case on(std::vector<Axis> axes, Plan plan = {}) { return {std::move(axes), std::move(plan)}; }

// All steps on all ranks of a case; losses and norms compared on each.
Named steps_of(const Case& c, const Tiny& how, const Trained& expected, double most) {
  Named state;
  replicate(c.world(), [&](const Group& world) {
    const Mesh mesh(world, c.axes);
    Plan plan = c.plan;
    plan.seed = kSeed;
    plan.optimizer = optimizer_spec(adam(), {.max_grad_norm = how.clip});
    ParallelModel model = parallelize(tiny_model(how), plan, mesh);
    for (std::size_t step = 0; step < kSteps; ++step) {
      const double loss = train(model, mesh, static_cast<int>(step));
      EXPECT_NEAR(loss, expected.losses[step], most * expected.losses[step]) << c.name() << ", step " << step;
      EXPECT_NEAR(model.grad_norm(), expected.norms[step], most * expected.norms[step]) << c.name() << ", step " << step;
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

Plan by(Algorithm schedule, int micro_batches, int zero_stage = 3, const char* form = "auto") {
  return {.schedule = schedule, .micro_batches = micro_batches, .zero_stage = zero_stage, .form = form};
}

const std::vector<Case>& products() {
  static const std::vector<Case> all = {
      on({}),
      on({{"dp", 3}}),
      on({{"fsdp", 2}}, {.zero_stage = 1}),
      on({{"fsdp", 3}}, {.zero_stage = 2, .form = "gathered"}),
      on({{"fsdp", 2}}),
      on({{"fsdp", 2}}, {.micro_batches = 2, .form = "gathered"}),
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
      on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 2, .form = "gathered"}),
      on({{"fsdp", 2}, {"tp", 2}}),
      on({{"pp", 2}, {"tp", 2}}, by(Algorithm::kZeroBubbleV, 3)),
      on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kOneForwardOneBackward, 3)),
      on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kInterleaved, 8)),  // more micro-batches than a replica has samples
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 3, 1)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kInterleaved, 3, 2, "gathered")),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kOneForwardOneBackward, 3, 3, "gathered")),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleV, 3, 3, "gathered")),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleH1, 3)),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleH2, 3, 3, "gathered")),
      on({{"pp", 2}, {"fsdp", 2}}, by(Algorithm::kZeroBubbleV, 3, 2, "gathered")),
      on({{"pp", 2}, {"dp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2)),
      on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, by(Algorithm::kInterleaved, 2, 3, "gathered")),
  };
  return all;
}

TEST(Compose, TrainsAsOneProcessOverEveryProductOfAxes) {
  const Tiny how;
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c : products()) steps_of(c, how, expected, 1e-10);
}

TEST(Compose, ClipsTheNormOfTheWholeModel) {
  Tiny how;
  const auto free = by_torch<torch::optim::AdamW>(how, adam());
  how.clip = free.norms[0] / 3;
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  EXPECT_NE(expected.losses[2], free.losses[2]);
  for (const Case& c : {on({{"tp", 2}}), on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kZeroBubbleV, 2)),
                        on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    steps_of(c, how, expected, 1e-10);
  }
}

TEST(Compose, TrainsInFloat32WithinItsRounding) {
  const Tiny how{.type = at::kFloat};
  const auto expected = by_torch<torch::optim::AdamW>(how, adam());
  for (const Case& c :
       {on({{"dp", 2}}), on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2, 3, "gathered"))}) {
    steps_of(c, how, expected, 1e-5);
  }
}

}  // namespace
}  // namespace weft::parallel
