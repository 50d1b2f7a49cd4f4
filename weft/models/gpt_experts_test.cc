// A small GPT with experts divided over ranks is compared to one process on the joined batch (1e-10
// relative and absolute in float64, 1e-5 in float32).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/comm/replicate.h"
#include "weft/models/gpt.h"
#include "weft/models/huggingface.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::models {
namespace gpt_experts_test {

using parallel::ContextParallel;
using parallel::ExpertParallel;
using parallel::TensorParallel;
using testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;
constexpr std::int64_t kBatch = 4;

GptOptions with_experts(bool llama, std::int64_t top_k, double capacity) {
  GptOptions o{
      .vocabulary = 13, .layers = 2, .width = 8, .heads = 4, .hidden = 16, .sequence_length = 8};
  if (llama) o = like_llama(o);
  o.initial_std = 0.3;
  o.experts = 4;
  o.experts_top_k = top_k;
  o.experts_capacity = capacity;
  o.experts_balance = 0.1;
  o.experts_z = 0.02;
  return o;
}

at::Tensor tokens_of(int step) {
  return (torch::arange(kBatch * 8).view({kBatch, 8}) * 7 + step * 3) % 13;
}

struct Case {
  GptOptions options;
  at::ScalarType type = at::kDouble;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;  // Whole, not this rank's slices.
};

// Groups of this rank: the ranks that share its batch, those that divide the experts (ep), and
// those that divide the sequences (cp).
struct Sharers {
  Group batch, ep;
  ContextParallel cp = {};
};

// Trains on some rows of each batch. `rows` has the first row and the number of rows.
Trained train(const Case& c, const TensorParallel& tp, const Sharers* sharers,
              std::pair<std::int64_t, std::int64_t> rows) {
  const ContextParallel cp = sharers != nullptr ? sharers->cp : ContextParallel();
  Gpt model(c.options, tp, cp,
            sharers != nullptr ? ExpertParallel(sharers->ep, sharers->batch) : ExpertParallel());
  model->to(c.type);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  Trained out;
  for (int step = 0; step < 5; ++step) {
    const auto [first, count] = rows;
    optimizer.zero_grad();
    const at::Tensor logits = model->forward(tokens_of(step).narrow(0, first, count));
    const double share = static_cast<double>(count) / kBatch / cp.size();
    const at::Tensor loss =
        model->loss(logits, tokens_of(step + 1).narrow(0, first, count)) * share;
    loss.backward();
    at::Tensor all = loss.detach().clone();
    if (sharers != nullptr) {
      const Group& batch = sharers->batch;
      batch.all_reduce(all);
      parallel::sum_gradients(
          *model, batch, cp.size() > 1 ? cp.group() : batch.subgroup({batch.rank()}, "replicas"));
    }
    out.losses.push_back(all.item<double>());
    optimizer.step();
  }
  const auto split = parallel::slices(*model), experts = parallel::expert_slices(*model);
  for (const auto& p : model->named_parameters()) {
    at::Tensor mine = p.value().detach().clone();
    if (split.contains(p.key())) mine = parallel::whole_of(mine, split.at(p.key()), tp);
    if (experts.contains(p.key()) && sharers != nullptr)
      mine = parallel::whole_of(mine, experts.at(p.key()), TensorParallel(sharers->ep, 0));
    out.weights[p.key()] = mine;
  }
  return out;
}

Trained alone(const Case& c) {
  torch::manual_seed(kSeed);
  return train(c, TensorParallel(), nullptr, {0, kBatch});
}

void expect_same(const Trained& got, const Trained& want, at::ScalarType type) {
  const double most = type == at::kDouble ? 1e-10 : 1e-5;
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], most * want.losses[i]) << "step " << i;
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (const auto& [name, weight] : want.weights) {
    ASSERT_EQ(got.weights.at(name).sizes(), weight.sizes()) << name;
    EXPECT_TRUE(at::allclose(got.weights.at(name), weight, most, most)) << name;
  }
}

void compare(const Case& c, const std::vector<std::int64_t>& shares) {
  const Trained one = alone(c);
  EXPECT_NE(one.losses.front(), one.losses.back());
  replicate(static_cast<int>(shares.size()), [&](const Group& group) {
    std::int64_t first = 0;
    for (int r = 0; r < group.rank(); ++r) first += shares[static_cast<std::size_t>(r)];
    const TensorParallel tp(group.subgroup({group.rank()}, "tp"), kSeed);
    const Sharers all{group, group};
    expect_same(train(c, tp, &all, {first, shares[static_cast<std::size_t>(group.rank())]}), one,
                c.type);
  });
}

TEST(GptExperts, TrainsWithExpertsOverRanksAsInOneProcess) {
  compare({with_experts(true, 2, 0)}, {4});
  compare({with_experts(true, 2, 0)}, {3, 1});
  compare({with_experts(false, 1, 0)}, {1, 1, 1, 1});
  compare({with_experts(true, 2, 1)}, {2, 0, 1, 1});
  compare({with_experts(true, 2, 0), at::kFloat}, {2, 2});
}

TEST(GptExperts, TrainsWithExpertsAndLayersOverRanksAsInOneProcess) {
  const Case c{with_experts(true, 2, 1)};
  const Trained one = alone(c);
  replicate(4, [&](const Group& group) {
    const int r = group.rank();
    const Group tp = group.subgroup({r / 2 * 2, r / 2 * 2 + 1}, "tp"),
                ep = group.subgroup({r % 2, r % 2 + 2}, "ep");
    const std::pair<std::int64_t, std::int64_t> rows =
        ep.rank() == 0 ? std::pair{0, 3} : std::pair{3, 1};
    const Sharers both{ep, ep};
    expect_same(train(c, TensorParallel(tp, kSeed), &both, rows), one, c.type);
  });
}

// Two replicas of two ranks each. The second replica has one row or none.
TEST(GptExperts, TrainsWithExpertsAndSequencesOverRanksAsInOneProcess) {
  for (const auto& [type, less] : {std::pair<at::ScalarType, std::int64_t>{at::kDouble, 1},
                                   {at::kDouble, 0},
                                   {at::kFloat, 1}}) {
    const Case c{with_experts(true, 2, 0), type};
    const Trained one = alone(c);
    replicate(4, [&, type = type, less = less](const Group& group) {
      const int r = group.rank();
      const Group cp = group.subgroup({r / 2 * 2, r / 2 * 2 + 1}, "cp"),
                  ep = group.subgroup({r % 2, r % 2 + 2}, "ep");
      using Rows = std::pair<std::int64_t, std::int64_t>;
      const Rows rows = ep.rank() == 0 ? Rows{0, kBatch - less} : Rows{kBatch - less, less};
      const Sharers all{group, ep, ContextParallel(cp)};
      expect_same(train(c, TensorParallel(group.subgroup({r}, "tp"), kSeed), &all, rows), one,
                  type);
    });
  }
}

TEST(GptExperts, AddsTheAuxiliaryLossesOfItsExpertsInTraining) {
  torch::manual_seed(kSeed);
  Gpt model(with_experts(true, 2, 0), TensorParallel());
  model->to(at::kDouble);
  const auto loss = [&] {
    return model->loss(model->forward(tokens_of(0)), tokens_of(1)).item<double>();
  };
  const double training = loss(),
               added =
                   (model->blocks[0]->auxiliary() + model->blocks[1]->auxiliary()).item<double>();
  model->eval();
  EXPECT_GT(added, 0);
  EXPECT_NEAR(training, loss() + added, 1e-12);
  EXPECT_EQ(parallel::expert_loads(*model).size(), 2u);
  EXPECT_FALSE(model->named_parameters().contains("blocks.0.mlp.up_proj.weight"));
}

TEST(GptExperts, KeepsTheAuxiliaryLossesGradientUnderRecomputation) {
  std::vector<at::Tensor> gradients;
  for (const bool again : {false, true}) {
    torch::manual_seed(kSeed);
    Gpt model(with_experts(true, 2, 1), TensorParallel());
    model->to(at::kDouble);
    at::Tensor x = tokens_of(0);
    for (const auto& part : model->parts()) {
      if (again && part != model->embedding && part != model->head) {
        const auto both = parallel::recompute_all(
            [part](const std::vector<at::Tensor>& in) {
              const at::Tensor y = part->forward(in[0]);
              return std::vector<at::Tensor>{y, part->auxiliary()};
            },
            {x});
        x = both[0];
        part->set_auxiliary(both[1]);
      } else {
        x = part->forward(x);
      }
    }
    model->loss(x, tokens_of(1)).backward();
    std::vector<at::Tensor> flat;
    for (const at::Tensor& p : model->parameters()) flat.push_back(p.grad().reshape({-1}));
    gradients.push_back(torch::cat(flat));
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

// The balance loss of transformers sums over both choices, so it is top_k times ours. This holds
// for one layer; with several, transformers averages shares and probabilities over the
// layers before it multiplies them.
TEST(GptExperts, MatchesMixtralsLogitsAndLossesAndExportsItsWeights) {
  auto weights = checkpoint::load_safetensors(
                     (std::filesystem::path(WEFT_TESTDATA) / "mixtral.safetensors").string())
                     .tensors;
  const auto take = [&](const char* name) { return weights.extract(name).mapped(); };
  const at::Tensor tokens = take("tokens"), logits = take("logits"), loss = take("loss"),
                   balance = take("balance");
  GptOptions o = like_llama({.vocabulary = 37,
                             .layers = 1,
                             .width = 16,
                             .heads = 4,
                             .kv_heads = 2,
                             .hidden = 12,
                             .sequence_length = 16});
  o.norm_eps = 1e-6;
  o.rope_theta = 500;
  o.experts = 4;
  o.experts_balance = 1;
  for (const int ranks : {1, 2, 4}) {
    replicate(ranks, [&](const Group& group) {
      Gpt model(o, TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed),
                parallel::ContextParallel(), ExpertParallel(group));
      set_huggingface(*model, weights);
      // Every rank has the same rows, so shares and means equal those of one rank.
      EXPECT_TRUE(torch::allclose(model->forward(tokens), logits, 2e-5, 2e-5));
      EXPECT_NEAR(2 * model->blocks[0]->auxiliary().item<double>(), balance.item<double>(), 2e-5);
      const at::Tensor targets = torch::full_like(tokens, -100);
      targets.slice(1, 0, -1).copy_(tokens.slice(1, 1));
      model->eval();
      EXPECT_NEAR(model->loss(model->forward(tokens), targets).item<double>(), loss.item<double>(),
                  2e-5);
      const checkpoint::TensorMap back = get_huggingface(*model);
      ASSERT_EQ(back.size(), weights.size());
      for (const auto& [key, tensor] : weights)
        EXPECT_TRUE(torch::equal(back.at(key), tensor)) << key;
      auto spoilt = weights;
      spoilt["model.layers.0.block_sparse_moe.experts.3.w1.weight"] = torch::zeros({12, 15});
      EXPECT_THROW(set_huggingface(*model, spoilt), Error)
          << "on every rank, whoever has the expert";
    });
  }
}

TEST(GptExperts, RefusesASplitSequence) {
  GptOptions o = with_experts(true, 2, 0);
  o.sequence = parallel::Sequence::kSplit;
  try {
    Gpt(o, TensorParallel());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("experts need the whole sequence"));
  }
}

}  // namespace gpt_experts_test
}  // namespace weft::models
