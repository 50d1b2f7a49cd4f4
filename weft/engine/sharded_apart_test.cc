// Parameters that differ between replicas. Expected gradients come from plain torch, computed on
// each rank for all ranks.
#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace sharded_apart_test {

using internal::require;
using Named = internal::Named;
using namespace std::chrono_literals;

constexpr const char* kApart = "b1.";
bool is_apart(const std::string& name) { return name.rfind(kApart, 0) == 0; }

// The pair of ranks, 0 or 1, to which the second block belongs.
std::vector<internal::Part> parts_of(int pair) {
  auto parts = internal::make_parts({});
  const torch::NoGradGuard guard;
  for (auto& p : parts[1]->parameters()) p.mul_(1.0 + pair);
  return parts;
}

at::Tensor share_of_loss(const at::Tensor& y) {
  return internal::loss_of(y) * (static_cast<double>(y.size(0)) / internal::kBatch);
}
at::Tensor samples_of(int rank) {
  return internal::part_of(internal::batch_of(0, at::kDouble), rank, 4);
}

// Expected gradients on the ranks of `pair`: their own for the second block, those of all ranks for
// the rest.
Named right_gradients(int pair) {
  Named sums;
  for (int rank = 0; rank < 4; ++rank) {
    const auto parts = parts_of(rank / 2);
    at::Tensor h = samples_of(rank);
    for (auto part : parts) h = part->forward(h);
    share_of_loss(h).backward();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const auto& item : parts[i]->named_parameters()) {
        const std::string name = internal::part_name(i) + "." + item.key();
        if (is_apart(name) && rank / 2 != pair) continue;
        at::Tensor& sum = sums[name];
        sum = sum.defined() ? sum + item.value().grad() : item.value().grad();
      }
    }
  }
  return sums;
}

// Ranks 0 and 1 hold the shards of one model, 2 and 3 those of the other. Ranks 0 and 2 have the
// same shard of all blocks but the second, and so have 1 and 3.
ShardedOptions options_of(const Group& world, int stage, Weights weights) {
  const int r = world.rank();
  ShardedOptions options{.stage = stage, .weights = weights};
  options.average = ShardedOptions::Average::kSum;
  options.replicas = world.subgroup({r % 2, r % 2 + 2}, "replicas");
  options.apart = ShardedOptions::Apart{is_apart, std::nullopt};
  return options;
}

TEST(ShardedApart, SumsEachGradientOverTheRanksThatHaveTheParameter) {
  for (const auto& [stage, weights] : {std::pair{1, Weights::kPrivate},
                                       {2, Weights::kPrivate},
                                       {3, Weights::kPrivate},
                                       {3, Weights::kShared}}) {
    comm::replicate(
        4,
        [stage = stage, weights = weights](const Group& world) {
          const int pair = world.rank() / 2;
          const Group group = world.subgroup({2 * pair, 2 * pair + 1}, "shards");
          Sharded model(internal::blocks_of(parts_of(pair)), group,
                        optimizer_spec(torch::optim::SGDOptions(1.0), {}),
                        options_of(world, stage, weights));
          require(
              model.describe().find("4 of the parameters in options.apart") != std::string::npos,
              model.describe());
          const auto before = model.state();
          share_of_loss(model.forward(samples_of(world.rank()))).backward();
          const auto gradients = model.gradients();
          model.step();
          const auto state = model.state();
          if (group.rank() > 0) return;
          const Named right = right_gradients(pair);
          internal::expect_close(Named(gradients.begin(), gradients.end()), right, 1e-12,
                                 model.describe() + ", gradients");
          Named updated = internal::weights_in(before, right);
          for (auto& [name, weight] : updated) weight = weight - right.at(name);
          internal::expect_close(internal::weights_in(state, right), updated, 1e-12,
                                 model.describe() + ", weights");
        },
        20s);
  }
}

TEST(ShardedApart, RejectsMeansAndAPartialNorm) {
  comm::replicate(1, [](const Group& world) {
    const auto refused = [&](double norm, ShardedOptions::Average average) {
      ShardedOptions options;
      options.average = average;
      options.apart = ShardedOptions::Apart{is_apart, std::nullopt};
      const auto spec = optimizer_spec(torch::optim::SGDOptions(1.0), {.max_grad_norm = norm});
      return refusal([&] { Sharded(internal::blocks_of(parts_of(0)), world, spec, options); });
    };
    require(
        refused(0, ShardedOptions::Average::kBySamples).find("average = kSum") != std::string::npos,
        "means were taken");
    require(
        refused(1, ShardedOptions::Average::kSum).find("max_grad_norm = 0") != std::string::npos,
        "a norm was accepted");
    require(refused(0, ShardedOptions::Average::kSum) == "accepted", "a sum was rejected");
  });
}

}  // namespace sharded_apart_test
}  // namespace weft::engine
