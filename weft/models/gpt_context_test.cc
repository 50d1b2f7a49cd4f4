// A small GPT with its sequence over 1 to 4 ranks, and over 2 x 2 ranks with split layers, is
// compared to one process without a group. Tolerance of losses, gradients and weights, relative and
// absolute: 1e-10 in float64, 1e-5 in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/engine/data_parallel.h"
#include "weft/models/gpt.h"

namespace weft::models {
namespace gpt_context_test {

using parallel::ContextMethod;
using parallel::ContextParallel;
using parallel::ExpertParallel;
using parallel::Sequence;
using parallel::TensorParallel;
using testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;

struct Case {
  GptOptions options;
  std::int64_t length = 16;
  bool packed = false;
  at::ScalarType type = at::kDouble;
  ContextMethod method = ContextMethod::kRing;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> first_gradients, weights;  // Whole, not this rank's slices.
};

at::Tensor tokens_of(const Case& c, int step) {
  return (torch::arange(2 * c.length).view({2, -1}) * 7 + step * 3) % c.options.vocabulary;
}

// The first three targets of each row do not count, so that ranks have different numbers of
// targets.
at::Tensor targets_of(const Case& c, int step) {
  return tokens_of(c, step + 1).masked_fill(torch::arange(c.length).lt(3), -100);
}

at::Tensor documents_of(const Case& c) {
  if (!c.packed) return {};
  return torch::stack({torch::arange(c.length).ge(c.length / 3).to(torch::kLong),
                       (torch::arange(c.length) * 4).floor_divide(c.length)});
}

at::Tensor whole(const GptImpl& model, const std::string& name, const at::Tensor& mine) {
  const auto slices = parallel::slices(model);
  const auto slice = slices.find(name);
  return (slice == slices.end() ? mine : parallel::whole_of(mine, slice->second, model.tp)).clone();
}

Trained train(const Case& c, const TensorParallel& tp, const ContextParallel& cp) {
  // Every rank has all experts. The balance loss is over the positions of all ranks.
  const bool shares = c.options.experts > 0 && cp.size() > 1;
  const auto ep = shares ? ExpertParallel(cp.group().subgroup({cp.rank()}, "ep"), cp.group())
                         : ExpertParallel();
  Gpt model(c.options, tp, cp, ep);
  model->to(c.type);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  Trained out;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss =
        model->loss(model->forward(tokens_of(c, step), documents_of(c)), targets_of(c, step));
    loss.backward();
    parallel::average_gradients(*model, cp);
    out.losses.push_back(loss.item<double>());
    if (step == 0) {
      for (const auto& p : model->named_parameters())
        out.first_gradients[p.key()] = whole(*model, p.key(), p.value().grad());
    }
    optimizer.step();
  }
  for (const auto& p : model->named_parameters())
    out.weights[p.key()] = whole(*model, p.key(), p.value().detach());
  return out;
}

Trained alone(const Case& c) {
  torch::manual_seed(kSeed);
  Case plain = c;
  plain.options.sequence = Sequence::kWhole;
  return train(plain, TensorParallel(), ContextParallel());
}

void expect_same(const Trained& got, const Trained& want, at::ScalarType type,
                 const std::string& what) {
  const double most = type == at::kDouble ? 1e-10 : 1e-5;
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], most * want.losses[i]) << what;
  using Tensors = std::map<std::string, at::Tensor>;
  const auto compare = [&](const Tensors& mine, const Tensors& theirs) {
    ASSERT_EQ(mine.size(), theirs.size()) << what;
    for (const auto& [name, tensor] : theirs) {
      const at::Tensor& other = mine.at(name);
      EXPECT_TRUE(at::allclose(other, tensor, most, most))
          << what << ": " << name << " by " << (other - tensor).abs().max().item<double>();
    }
  };
  compare(got.first_gradients, want.first_gradients);
  compare(got.weights, want.weights);
}

// Ranks of a tp group are consecutive.
void compare(const Case& c, int context, int tensor = 1) {
  const Trained one = alone(c);
  EXPECT_NE(one.losses.front(), one.losses.back());
  replicate(context * tensor, [&](const Group& group) {
    const int place = group.rank() / tensor, slice = group.rank() % tensor;
    std::vector<int> along_cp, along_tp;
    for (int i = 0; i < context; ++i) along_cp.push_back(i * tensor + slice);
    for (int i = 0; i < tensor; ++i) along_tp.push_back(place * tensor + i);
    const TensorParallel tp(group.subgroup(along_tp, "tp"), kSeed);
    const ContextParallel cp(group.subgroup(along_cp, "cp"), c.method);
    expect_same(train(c, tp, cp), one, c.type,
                std::to_string(context) + " x " + std::to_string(tensor));
  });
}

GptOptions gpt2() {
  GptOptions o{
      .vocabulary = 13, .layers = 2, .width = 8, .heads = 4, .hidden = 16, .sequence_length = 32};
  o.initial_std = 0.3;
  return o;
}

GptOptions llama(std::int64_t kv_heads) {
  GptOptions o = like_llama(gpt2());
  o.kv_heads = kv_heads;
  return o;
}

TEST(GptContext, TrainsOverRanksAsOnOneProcessWithLearnedPositions) {
  for (const int ranks : {1, 2, 3, 4}) compare({.options = gpt2(), .length = 17}, ranks);
  compare({.options = gpt2(), .packed = true}, 2);
  compare({.options = gpt2(), .length = 17, .type = at::kFloat}, 3);
}

TEST(GptContext, TrainsOverRanksAsOnOneProcessWithRotaryPositionsAndGroupedQueries) {
  for (const int ranks : {2, 3, 4}) compare({.options = llama(2), .length = 17}, ranks);
  compare({.options = llama(1), .length = 19, .packed = true}, 3);
  compare({.options = llama(2), .length = 17, .type = at::kFloat}, 2);
}

TEST(GptContext, TrainsByHeadsAsOnOneProcess) {
  compare({.options = llama(2), .length = 17, .method = ContextMethod::kHeads}, 2);
  compare({.options = llama(2), .length = 19, .packed = true, .method = ContextMethod::kHeads}, 4);
}

TEST(GptContext, TrainsWithSplitLayersToo) {
  for (const auto method : {ContextMethod::kRing, ContextMethod::kHeads}) {
    compare({.options = gpt2(), .length = 17, .method = method}, 2, 2);
    compare({.options = llama(2), .length = 17, .packed = true, .method = method}, 2, 2);
  }
  GptOptions split = llama(2);
  split.sequence = Sequence::kSplit;
  compare({.options = split, .length = 16}, 2, 2);
  GptOptions cut = llama(2);  // Four heads per rank; three heads share a head of keys.
  cut.width = 24;
  cut.heads = 12;
  cut.kv_heads = 4;
  cut.hidden = 18;
  compare({.options = cut, .length = 11}, 1, 3);
  compare({.options = cut, .length = 11}, 2, 3);
}

TEST(GptContext, DropsTheSameElementsOverRanksAsOneProcess) {
  GptOptions dropping = gpt2(), grouped = llama(2);
  dropping.dropout = grouped.dropout = 0.2;
  EXPECT_NE(alone({.options = dropping}).losses, alone({.options = gpt2()}).losses);
  for (const int ranks : {2, 3}) compare({.options = dropping, .length = 17}, ranks);
  compare({.options = grouped, .length = 17, .packed = true, .method = ContextMethod::kHeads}, 2);
  compare({.options = grouped, .length = 17}, 2, 2);
  GptOptions split = grouped;
  split.sequence = Sequence::kSplit;
  compare({.options = split, .length = 16, .method = ContextMethod::kHeads}, 2, 2);
}

GptOptions with_experts() {
  GptOptions o = llama(2);
  o.experts = 4;
  o.experts_balance = 0.1;
  o.experts_z = 0.02;
  return o;
}

TEST(GptContext, TrainsWithExpertsAsOnOneProcess) {
  for (const int ranks : {2, 3, 4}) compare({.options = with_experts(), .length = 17}, ranks);
  compare(
      {.options = with_experts(), .length = 19, .packed = true, .method = ContextMethod::kHeads},
      2);
  compare({.options = with_experts(), .length = 17}, 2, 2);
  compare({.options = with_experts(), .length = 17, .type = at::kFloat}, 3);
  GptOptions dropping = with_experts();
  dropping.experts_capacity = 1;
  for (const ContextMethod method : {ContextMethod::kRing, ContextMethod::kHeads})
    compare({.options = dropping, .length = 17, .method = method}, 2);
  EXPECT_NE(alone({.options = dropping}).losses, alone({.options = with_experts()}).losses);
}

TEST(GptContext, DrawsTheSameExpertJitterAsOneProcess) {
  GptOptions o = with_experts();
  o.experts_jitter = 0.3;
  EXPECT_NE(alone({.options = o}).losses, alone({.options = with_experts()}).losses);
  compare({.options = o, .length = 17}, 3);
  compare({.options = o, .length = 17}, 2, 2);
}

TEST(GptContext, TrainsUnderDataParallelismOverItsRanks) {
  const Case c{.options = llama(2), .length = 17, .type = at::kFloat};
  const Trained one = alone(c);
  replicate(2, [&](const Group& group) {
    const ContextParallel cp(group);
    const auto model = engine::data_parallel(
        std::make_shared<GptImpl>(c.options,
                                  TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed), cp),
        group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->loss(model.forward(tokens_of(c, step)), targets_of(c, step)).backward();
      optimizer.step();
    }
    for (const auto& p : model->named_parameters())
      EXPECT_TRUE(at::allclose(p.value(), one.weights.at(p.key()), 1e-5, 1e-5)) << p.key();
  });
}

TEST(GptContext, RefusesSequencesThatItCannotDivide) {
  replicate(2, [](const Group& group) {
    const TensorParallel tp(group.subgroup({group.rank()}, "tp"), kSeed);
    GptOptions split = gpt2();
    split.sequence = Sequence::kSplit;
    const TensorParallel both(group, kSeed);
    Gpt model(split, both, ContextParallel(group));
    EXPECT_THAT(refusal([&] {
                  model->forward(torch::zeros({1, 10}, torch::kLong));
                }),
                HasSubstr("Gpt: sequence: 5 does not divide by 2 ranks"));
  });
}

}  // namespace gpt_context_test
}  // namespace weft::models
