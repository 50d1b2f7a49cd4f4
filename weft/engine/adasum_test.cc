// Average::kAdasum against the equation of the paper, combined in a tree over whole tensors, in
// float64: weights and gradients to 1e-12 over 3 steps.
#include "weft/engine/internal/adasum.h"

#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace adasum_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::make_parts;
using internal::require;
using Named = internal::Named;

at::Tensor pair_of(const at::Tensor& a, const at::Tensor& b) {
  const double ab = (a * b).sum().item<double>(), aa = (a * a).sum().item<double>(),
               bb = (b * b).sum().item<double>();
  return (aa > 0 ? 1 - ab / (2 * aa) : 1) * a + (bb > 0 ? 1 - ab / (2 * bb) : 1) * b;
}

at::Tensor tree_of(std::vector<at::Tensor> all) {
  while (all.size() > 1) {
    std::vector<at::Tensor> next;
    for (std::size_t i = 0; i < all.size(); i += 2) next.push_back(pair_of(all[i], all[i + 1]));
    all = next;
  }
  return all[0];
}

ShardedOptions options() {
  ShardedOptions options;
  options.stage = 0;
  options.average = ShardedOptions::Average::kAdasum;
  return options;
}

// SGD in one process, with the gradients of each rank's rows.
std::pair<Named, Named> expected_of(int world, int steps) {
  const auto parts = make_parts({});
  Named weights, gradients;
  for (int step = 0; step < steps; ++step) {
    std::map<std::string, std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < world; ++rank) {
      at::Tensor h = internal::part_of(internal::batch_of(step, at::kDouble), rank, world);
      for (auto part : parts) h = part->forward(h);
      internal::loss_of(h).backward();
      for (std::size_t i = 0; i < parts.size(); ++i) {
        for (auto& item : parts[i]->named_parameters()) {
          of_ranks[internal::part_name(i) + "." + item.key()].push_back(item.value().grad());
          item.value().mutable_grad() = at::Tensor();
        }
      }
    }
    const torch::NoGradGuard guard;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (auto& item : parts[i]->named_parameters()) {
        const std::string name = internal::part_name(i) + "." + item.key();
        gradients[name] = tree_of(of_ranks.at(name));
        item.value().sub_(0.1 * gradients[name]);
        weights[name] = item.value().detach();
      }
    }
  }
  return {weights, gradients};
}

void expect_adasum(const Group& group) {
  const auto [weights, gradients] = expected_of(group.size(), 3);
  Sharded model(blocks_of(make_parts({})), group, optimizer_spec(torch::optim::SGDOptions(0.1), {}),
                options());
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    internal::train(model, group, step, {});
  }
  const auto sums = model.gradients();
  const auto state = model.state();
  if (state.empty()) return;
  internal::expect_close({sums.begin(), sums.end()}, gradients, 1e-12, "gradients");
  internal::expect_close(internal::weights_in(state, weights), weights, 1e-12, "weights");
}

TEST(Adasum, FollowsTheEquationOfItsPaperPerLayer) {
  for (const int world : {1, 2, 4})
    replicate(
        world, [](Group group) { expect_adasum(group); }, 20s);
}

TEST(Adasum, FollowsItOverTcp) {
  const auto codes = comm::fork_ranks(4, "tcp", [&](const Group& group) {
    expect_adasum(group);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

// The paper's two special cases, and layers of odd sizes, also empty ones.
TEST(Adasum, AddsOrthogonalGradientsAndAveragesEqualOnes) {
  replicate(8, [](Group group) {
    const std::vector<std::int64_t> bounds{0, 8, 8, 15, 16};
    at::Tensor flat = torch::zeros({16}, at::kFloat);
    flat[group.rank()] = 2;                                        // orthogonal to the others
    flat.slice(0, 8, 15).copy_(torch::arange(7, at::kFloat) - 2);  // equal on all ranks
    flat[15] = group.rank() == 2 ? 5 : 0;                          // of one rank alone
    const at::Tensor own = flat.clone();
    internal::adasum(group, flat, bounds);
    require(at::equal(flat.slice(0, 0, 8), torch::full({8}, 2.0f)), "orthogonal layers");
    require(at::allclose(flat.slice(0, 8, 15), own.slice(0, 8, 15)), "equal layers");
    require(flat[15].item<float>() == 5, "a layer of one rank");
    std::vector<at::Tensor> all = group.gather(flat, 0);
    for (const at::Tensor& one : all) require(at::equal(one, flat), "other bits on a rank");
  });
}

TEST(Adasum, ClipsByTheNormOfTheCombination) {
  replicate(2, [](Group group) {
    Sharded model(blocks_of(make_parts({})), group,
                  optimizer_spec(torch::optim::SGDOptions(0.1), {.max_grad_norm = 1e-3}),
                  options());
    internal::train(model, group, 0, {});
    double squares = 0;
    for (const auto& [name, gradient] : model.gradients())
      squares += gradient.square().sum().item<double>();
    if (group.rank() == 0) require(std::abs(std::sqrt(squares) - 1e-3) < 1e-8, "another norm");
  });
}

TEST(Adasum, IsRefusedWhereItCannotCombineWholeGradients) {
  const auto refused = [](int world, const ShardedOptions& how, const char* why) {
    replicate(world, [&](Group group) {
      expect_refused(
          [&] {
            Sharded(blocks_of(make_parts({})), group,
                    optimizer_spec(torch::optim::SGDOptions(0.1), {}), how);
          },
          Errc::kInvalidArgument, why);
    });
  };
  refused(3, options(), "a power of two of ranks, not 3");
  for (const int stage : {1, 2, 3}) {
    ShardedOptions how = options();
    how.stage = stage;
    refused(2, how, "use stage 0");
  }
  ShardedOptions coded = options();
  coded.data_parallel.codec = "bf16";
  refused(2, coded, "does not support a codec");
  ShardedOptions shared = options();
  shared.weights = Weights::kShared;
  refused(2, shared, "no adasum");
}

}  // namespace adasum_test
}  // namespace weft::engine
