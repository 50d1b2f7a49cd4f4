// A GPT composed of its blocks equals the GPT.
#include "weft/models/gpt_blocks.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>

#include "weft/base/error.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::models {
namespace gpt_blocks_test {

using parallel::Axis;
using parallel::Plan;
using Named = std::map<std::string, at::Tensor>;

constexpr std::int64_t kBatch = 4, kLength = 6;
constexpr int kSteps = 3;

GptOptions tiny(bool tied) {
  GptOptions options{.vocabulary = 13,
                     .layers = 2,
                     .width = 8,
                     .heads = 2,
                     .sequence_length = kLength,
                     .tied = tied,
                     .dropout = 0};
  if (!tied) options = like_llama(options);
  options.initial_std = 0.3;
  return options;
}

at::Tensor ids(int phase) {
  return (torch::arange(kBatch * kLength).square() + 3 * phase)
      .remainder(13)
      .view({kBatch, kLength});
}
at::Tensor documents() {
  return torch::arange(kLength).div(4, "floor").expand({kBatch, kLength}).contiguous();
}

struct Outcome {
  std::vector<double> losses;
  Named state;
};

Outcome train(const std::vector<Axis>& axes, const Plan& plan, bool tied, double dropout = 0) {
  int world = 1;
  for (const Axis& axis : axes) world *= axis.size;
  Outcome run;
  comm::replicate(world, [&](const Group& group) {
    const Mesh mesh(group, axes);
    Plan asked = plan;
    asked.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
    GptOptions options = tiny(tied);
    options.dropout = dropout;
    auto model = parallel::parallelize(gpt_blocks(options), asked, mesh);
    const int replicas = mesh.size("dp") * mesh.size("fsdp"),
              replica = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
    const auto share = [&](const at::Tensor& all) {
      return all.chunk(replicas)[static_cast<std::size_t>(replica)];
    };
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      model.zero_grad();
      losses.push_back(
          model.train_step({share(ids(step)), share(documents())}, {share(ids(step + 1))}));
      model.step();
    }
    const auto state = model.state();
    if (group.rank() == 0) run = {losses, Named(state.begin(), state.end())};
  });
  return run;
}

// The same training with torch, from the initial weights of the composed model.
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

TEST(GptBlocks, TrainLikeTheGptOverEveryAxis) {
  for (const bool tied : {true, false}) {
    const Outcome expected = by_torch(first_weights(tied), tied);
    const std::vector<std::pair<std::vector<Axis>, Plan>> plans = {
        {{}, {}},
        {{{"pp", 2}, {"tp", 2}}, {.micro_batches = 2, .recompute = parallel::Recompute::kFull}},
        {{{"pp", 2}, {"fsdp", 2}, {"tp", 2}},
         {.micro_batches = 2, .weights = engine::Weights::kPrivate}}};
    for (const auto& [axes, plan] : plans) {
      const Outcome run = train(axes, plan, tied);
      const std::string what = std::to_string(axes.size()) + " axes";
      for (std::size_t step = 0; step < kSteps; ++step)
        EXPECT_NEAR(run.losses[step], expected.losses[step], 1e-5) << what;
      for (const auto& [name, tensor] : expected.state) {
        ASSERT_EQ(run.state.count(name), 1U) << what << ": " << name;
        EXPECT_TRUE(at::allclose(run.state.at(name), tensor, 1e-4, 1e-5)) << what << ": " << name;
      }
    }
  }
}

// The blocks of a GPT in float64.
parallel::BlockModel doubled(const GptOptions& options) {
  parallel::BlockModel model = gpt_blocks(options);
  for (auto& block : model.blocks) {
    block.make = [make = block.make](const parallel::Contexts& with) {
      engine::Block made = make(with);
      made.module->to(at::kDouble);
      return made;
    };
  }
  return model;
}

struct Axes {
  std::vector<Axis> axes;
  Plan plan = {};
};

// Losses of all steps and the final weights of Gpt in one process. The initial weights are those
// that parallelize() makes on one rank.
Outcome by_gpt(const GptOptions& options, bool packed) {
  Outcome run;
  comm::replicate(1, [&](const Group& group) {
    const auto state = parallel::parallelize(doubled(options), {}, Mesh(group, {})).state();
    run.state = Named(state.begin(), state.end());
  });
  Gpt gpt(options, parallel::TensorParallel());
  gpt->to(at::kDouble);
  const auto weights = gpt->named_parameters();
  for (const auto& item : weights) item.value().detach().copy_(run.state.at(item.key()));
  torch::optim::SGD optim(gpt->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    const at::Tensor loss =
        gpt->loss(gpt->forward(ids(step), packed ? documents() : at::Tensor()), ids(step + 1));
    loss.backward();
    optim.step();
    run.losses.push_back(loss.item<double>());
  }
  run.state.clear();
  for (const auto& item : weights) run.state[item.key()] = item.value().detach();
  return run;
}

void compare(const GptOptions& options, bool packed, const std::vector<Axes>& cases) {
  const Outcome expected = by_gpt(options, packed);
  for (const Axes& c : cases) {
    int world = 1;
    for (const Axis& axis : c.axes) world *= axis.size;
    comm::replicate(world, [&](const Group& group) {
      Plan plan = c.plan;
      plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
      auto model = parallel::parallelize(doubled(options), plan, Mesh(group, c.axes));
      const auto share = [&](const at::Tensor& all) {
        return all.slice(0, kBatch * model.replica() / model.replicas(),
                         kBatch * (model.replica() + 1) / model.replicas());
      };
      for (int step = 0; step < kSteps; ++step) {
        model.zero_grad();
        engine::Tensors inputs{share(ids(step))};
        if (packed) inputs.push_back(share(documents()));
        const double loss = model.train_step(inputs, {share(ids(step + 1))}),
                     right = expected.losses[static_cast<std::size_t>(step)];
        EXPECT_NEAR(loss, right, 1e-10 * right) << model.describe();
        model.step();
      }
      const auto state = model.state();
      const Named mine(state.begin(), state.end());
      for (const auto& [name, tensor] : expected.state) {
        if (group.rank() > 0) break;
        ASSERT_EQ(mine.count(name), 1U) << name;
        EXPECT_TRUE(at::allclose(mine.at(name), tensor, 1e-10, 1e-10)) << name << "\n"
                                                                       << model.describe();
      }
    });
  }
}

TEST(GptBlocks, TrainLikeTheGptWithSequencesOverRanks) {
  const std::vector<Axes> cases = {
      {{{"cp", 2}}},
      {{{"cp", 2}}, {.context = parallel::ContextMethod::kHeads}},
      {{{"dp", 2}, {"cp", 2}, {"tp", 2}}},
      {{{"pp", 2}, {"cp", 2}}, {.micro_batches = 2, .recompute = parallel::Recompute::kFull}}};
  compare(tiny(/*tied=*/true), /*packed=*/true, cases);
  compare(tiny(/*tied=*/false), /*packed=*/false, {cases[0], cases[3]});
}

TEST(GptBlocks, TrainLikeTheGptWithExpertsOverRanks) {
  GptOptions options = tiny(/*tied=*/false);
  options.experts = 4;
  options.experts_balance = 0.1;
  options.experts_z = 0.02;
  options.experts_capacity = 1;  // Some tokens are dropped.
  compare(options, /*packed=*/true,
          {{{{"ep", 2}}, {.recompute = parallel::Recompute::kFull}},
           {{{"dp", 2}, {"ep", 2}}},
           {{{"ep", 2}, {"tp", 2}}},
           {{{"pp", 2}, {"ep", 2}}}});
  options.tied = true;
  compare(options, /*packed=*/false, {{{{"pp", 2}, {"ep", 2}}}});
}

TEST(GptBlocks, DropTheSameElementsWithSequencesOverRanksAsOneProcess) {
  const Outcome one = train({}, {}, /*tied=*/true, 0.2);
  for (const auto recompute :
       {parallel::Recompute::kNone, parallel::Recompute::kFull, parallel::Recompute::kSelective}) {
    const Outcome over = train({{"cp", 2}}, {.recompute = recompute}, /*tied=*/true, 0.2);
    for (std::size_t step = 0; step < kSteps; ++step)
      EXPECT_NEAR(over.losses[step], one.losses[step], 1e-5);
    for (const auto& [name, tensor] : one.state)
      EXPECT_TRUE(at::allclose(over.state.at(name), tensor, 1e-4, 1e-5)) << name;
  }
}

// For each plan, losses and weights with and without selective recomputation are bitwise equal,
// also with dropout.
TEST(GptBlocks, GiveTheSameBitsWithSelectiveRecomputation) {
  const std::vector<std::pair<std::vector<Axis>, Plan>> plans = {
      {{{"pp", 2}, {"tp", 2}},
       {.schedule = schedule::pipeline::Algorithm::kZeroBubbleH1, .micro_batches = 2}},
      {{{"fsdp", 2}}, {.zero_stage = 3, .weights = engine::Weights::kPrivate}}};
  for (const bool tied : {true, false}) {
    for (const auto& [axes, plan] : plans) {
      Plan selective = plan;
      selective.recompute = parallel::Recompute::kSelective;
      const Outcome kept = train(axes, plan, tied, 0.2), again = train(axes, selective, tied, 0.2);
      EXPECT_EQ(again.losses, kept.losses);
      ASSERT_EQ(again.state.size(), kept.state.size());
      for (const auto& [name, tensor] : kept.state)
        EXPECT_TRUE(torch::equal(again.state.at(name), tensor)) << name;
    }
  }
}

TEST(GptBlocks, SupportRecomputationAndOtherBlocksAreRefused) {
  comm::replicate(1, [](const Group& group) {
    const Plan plan{.recompute = parallel::Recompute::kSelective};
    parallel::BlockModel model = gpt_blocks(tiny(true));
    EXPECT_NE(parallel::parallelize(model, plan, Mesh(group, {}))
                  .describe()
                  .find("recompute: blocks recompute large and cheap activations in backward"),
              std::string::npos);
    model.selective = false;
    EXPECT_THROW(parallel::parallelize(model, plan, Mesh(group, {})), Error);
  });
}

}  // namespace gpt_blocks_test
}  // namespace weft::models
