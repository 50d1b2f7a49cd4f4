// The blocks of a GPT, composed, are the GPT.
#include "weft/models/gpt_blocks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "weft/comm/replicate.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::models {
namespace {

using parallel::Axis;
using parallel::Plan;
using Named = std::map<std::string, at::Tensor>;

constexpr std::int64_t kBatch = 4, kLength = 6;
constexpr int kSteps = 3;

GptOptions tiny(bool tied) {
  GptOptions options{.vocabulary = 13, .layers = 2, .width = 8, .heads = 2, .sequence_length = kLength, .tied = tied, .dropout = 0};
  if (!tied) options = like_llama(options);
  options.initial_std = 0.3;
  return options;
}

at::Tensor ids(int phase) { return (torch::arange(kBatch * kLength).square() + 3 * phase).remainder(13).view({kBatch, kLength}); }
at::Tensor documents() { return torch::arange(kLength).div(4, "floor").expand({kBatch, kLength}).contiguous(); }

struct Outcome {
  std::vector<double> losses;
  Named state;
};

Outcome train(const std::vector<Axis>& axes, const Plan& plan, bool tied) {
  int world = 1;
  for (const Axis& axis : axes) world *= axis.size;
  Outcome run;
  comm::replicate(world, [&](const Group& group) {
    const Mesh mesh(group, axes);
    Plan asked = plan;
    asked.optimizer = parallel::optimizer_spec(torch::optim::SGDOptions(0.1), {});
    auto model = parallel::parallelize(gpt_blocks(tiny(tied)), asked, mesh);
    const int replicas = mesh.size("dp") * mesh.size("fsdp"), replica = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
    const auto share = [&](const at::Tensor& all) { return all.chunk(replicas)[static_cast<std::size_t>(replica)]; };
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      model.zero_grad();
      losses.push_back(model.train_step({share(ids(step)), share(documents())}, {share(ids(step + 1))}));
      model.step();
    }
    const auto state = model.state();
    if (group.rank() == 0) run = {losses, Named(state.begin(), state.end())};
  });
  return run;
}

// The same by torch, from the weights that the composed model had at first.
Outcome by_torch(const Named& first, bool tied) {
  Gpt gpt(tiny(tied), parallel::TensorParallel());
  {
    const at::NoGradGuard no_grad;
    for (auto& item : gpt->named_parameters()) item.value().copy_(first.at(item.key()));
  }
  torch::optim::SGD optim(gpt->parameters(), torch::optim::SGDOptions(0.1));
  Outcome run;
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    const at::Tensor loss = gpt->loss(gpt->forward(ids(step), documents()), ids(step + 1));
    loss.backward();
    optim.step();
    run.losses.push_back(loss.item<double>());
  }
  for (const auto& item : gpt->named_parameters()) run.state[item.key()] = item.value().detach();
  return run;
}

Named first_weights(bool tied) {
  Named first;
  comm::replicate(1, [&](const Group& group) {
    const auto state = parallel::parallelize(gpt_blocks(tiny(tied)), {}, Mesh(group, {})).state();
    first = Named(state.begin(), state.end());
  });
  return first;
}

TEST(GptBlocks, TrainAsTheGptOverEveryAxis) {
  for (const bool tied : {true, false}) {
    const Outcome expected = by_torch(first_weights(tied), tied);
    const std::vector<std::pair<std::vector<Axis>, Plan>> plans = {
        {{}, {}},
        {{{"pp", 2}, {"tp", 2}}, {.micro_batches = 2, .recompute = parallel::Recompute::kFull}},
        {{{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, {.micro_batches = 2, .form = "gathered"}}};
    for (const auto& [axes, plan] : plans) {
      const Outcome run = train(axes, plan, tied);
      const std::string what = std::to_string(axes.size()) + " axes";
      for (std::size_t step = 0; step < kSteps; ++step) EXPECT_NEAR(run.losses[step], expected.losses[step], 1e-5) << what;
      for (const auto& [name, tensor] : expected.state) {
        ASSERT_EQ(run.state.count(name), 1U) << what << ": " << name;
        EXPECT_TRUE(at::allclose(run.state.at(name), tensor, 1e-4, 1e-5)) << what << ": " << name;
      }
    }
  }
}

}  // namespace
}  // namespace weft::models
