// ParallelModel::gradient_noise() over axes equals the norms of each replica's gradient, computed
// alone, to 1e-10 in float64.
#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_noise_test {

using namespace internal;

// The gradient norm over some rows, of one process.
double norm_of(const Tiny& how, int replica, int replicas) {
  double norm = 0;
  replicate(1, [&](const Group& world) {
    ParallelModel model = parallelize(tiny_model(how), {.seed = kSeed}, Mesh(world, {{"dp", 1}}));
    const auto share = [&](int shift) { return share_of(tokens_of(0, shift), replica, replicas); };
    model.train_step({share(0)}, {share(1)});
    norm = model.grad_norm();
  });
  return norm;
}

TEST(GradientNoise, IsTheMeanOverTheReplicasOfTheirOwnSquareNorms) {
  const Tiny how{.attends = true};
  double squares = 0, inverse = 0;
  for (int replica = 0; replica < 2; ++replica) {
    squares += std::pow(norm_of(how, replica, 2), 2) / 2;
    inverse += 0.5 / static_cast<double>(share_of(tokens_of(0, 0), replica, 2).size(0));
  }
  const double whole = norm_of(how, 0, 1);
  EXPECT_GT(squares, 1.001 * whole * whole) << "the gradients of the replicas are too alike";
  for (const Case& c :
       {on({{"dp", 2}}), on({{"dp", 2}}, {.weights = Weights::kPrivate}), on({{"fsdp", 2}}),
        on({{"fsdp", 2}}, {.zero_stage = 1, .weights = Weights::kPrivate}),
        on({{"dp", 2}, {"tp", 2}}), on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kGPipe, 2)),
        on({{"dp", 2}}, {.loss_scale = LossScaleOptions{}}),
        on({{"dp", 2}}, {.data_parallel = {.update_in_backward = true}})}) {
    replicate(c.world(), [&](const Group& world) {
      Plan plan = c.plan;
      plan.seed = kSeed;
      plan.measure_noise = true;
      ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
      EXPECT_FALSE(model.gradient_noise().has_value());
      train(model, 0);
      EXPECT_TRUE(model.step());
      ASSERT_TRUE(model.gradient_noise().has_value());
      at::Tensor sums = at::tensor(
          {model.gradient_noise()->squares, model.gradient_noise()->inverse_samples}, at::kDouble);
      world.all_reduce(sums);
      EXPECT_NEAR(sums[0].item<double>(), squares, 1e-10 * squares) << c.name();
      EXPECT_NEAR(sums[1].item<double>(), inverse, 1e-12) << c.name();
      EXPECT_NEAR(model.grad_norm(), whole, 1e-10 * whole) << c.name();
    });
  }
}

// Two batches a step: engines of whole stages see the mean gradient of a replica's batches, and
// shards each batch's.
TEST(GradientNoise, CountsTheSamplesThatItsNormsAreOver) {
  const Tiny how;
  for (const Case& c : {on({{"dp", 2}}), on({{"fsdp", 2}}, {.weights = Weights::kPrivate})}) {
    replicate(c.world(), [&](const Group& world) {
      Plan plan = c.plan;
      plan.seed = kSeed;
      plan.measure_noise = true;
      plan.accumulate = 4;
      const auto noise_of = [&](int batches) {
        ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
        model.set_accumulate(batches);
        for (int i = 0; i < batches; ++i) {
          const auto share = [&](int shift) {
            return share_of(tokens_of(0, shift), model.replica(), model.replicas());
          };
          model.train_step({share(0)}, {share(1)});  // the same batch each time
        }
        model.step();
        at::Tensor sums =
            at::tensor({model.gradient_noise()->squares, model.gradient_noise()->inverse_samples},
                       at::kDouble);
        world.all_reduce(sums);
        return std::tuple(sums[0].item<double>(), sums[1].item<double>(), model.grad_norm());
      };
      const auto [one, inverse, norm] = noise_of(1);
      const auto [two, half, same] = noise_of(2);
      EXPECT_NEAR(two, one, 1e-10 * one) << c.name() << ": the mean of equal gradients";
      EXPECT_NEAR(same, norm, 1e-10 * norm) << c.name();
      EXPECT_NEAR(half, c.size("dp") == 2 ? inverse / 2 : inverse, 1e-12) << c.name();
      ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, c.axes));
      expect_refused([&] { model.set_accumulate(5); }, Errc::kInvalidArgument, "from 1 to");
    });
  }
}

TEST(GradientNoise, NeedsTwoReplicasAndIsRefusedWhereNoRankHasAReplicasGradient) {
  replicate(2, [&](const Group& world) {
    const auto planned = [&](const std::vector<Axis>& axes, Plan plan) {
      plan.measure_noise = true;
      return parallelize(tiny_model({}), plan, Mesh(world, axes));
    };
    ParallelModel one = planned({{"tp", 2}}, {});
    train(one, 0);
    one.step();
    EXPECT_FALSE(one.gradient_noise().has_value());
    expect_refused(
        [&] {
          planned({{"dp", 2}}, {.micro_shards = 2});
        },
        Errc::kBadConfig, "not supported with micro_shards");
    expect_refused([&] { planned({{"cp", 2}}, {}); }, Errc::kBadConfig, "cp or ep");
  });
}

}  // namespace compose_noise_test
}  // namespace weft::parallel
