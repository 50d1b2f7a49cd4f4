// Plan::adasum: gradients of replicas are combined by the equation of the paper, to 1e-10 in
// float64, with and without stages.
#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_adasum_test {

using namespace internal;

// Gradients of one replica's rows, computed alone.
Named gradients_of(const Tiny& how, int replica) {
  Named gradients;
  replicate(1, [&](const Group& world) {
    ParallelModel model = parallelize(tiny_model(how), {.seed = kSeed}, Mesh(world, {{"dp", 1}}));
    const auto share = [&](int shift) { return share_of(tokens_of(0, shift), replica, 2); };
    model.train_step({share(0)}, {share(1)});
    gradients = named(model.gradients());
  });
  return gradients;
}

TEST(ComposeAdasum, FollowsTheEquationOverTheReplicasOfEachStage) {
  const Tiny how{.tied = false};
  const Named a = gradients_of(how, 0), b = gradients_of(how, 1);
  Named expected;
  for (const auto& [name, x] : a) {
    const at::Tensor& y = b.at(name);
    const double xy = (x * y).sum().item<double>(), xx = (x * x).sum().item<double>(),
                 yy = (y * y).sum().item<double>();
    expected[name] = (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y;
  }
  for (const Case& c : {on({{"dp", 2}}), on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kGPipe, 2))}) {
    replicate(c.world(), [&](const Group& world) {
      Plan plan = c.plan;
      plan.seed = kSeed;
      plan.adasum = true;
      ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
      EXPECT_THAT(model.describe(), testing::HasSubstr("combined by Adasum over dp=2"));
      train(model, 0);
      const Named gradients = named(model.gradients());
      EXPECT_TRUE(model.step());
      if (world.rank() == 0) expect_close(gradients, expected, 1e-10, c.name());
    });
  }
}

TEST(ComposeAdasum, RefusesAWeightThatIsTiedOverStages) {
  replicate(2, [&](const Group& world) {
    expect_refused(
        [&] {
          parallelize(tiny_model({}), {.adasum = true}, Mesh(world, {{"pp", 2}}));
        },
        Errc::kBadConfig, "no weight that is tied over stages");
    expect_refused(
        [&] {
          parallelize(tiny_model({}), {.codec = "bf16", .adasum = true}, Mesh(world, {{"dp", 2}}));
        },
        Errc::kBadConfig, "does not support codec");
  });
}

}  // namespace compose_adasum_test
}  // namespace weft::parallel
