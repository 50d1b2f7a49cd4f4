// The memory that a block keeps for its backward is within 10 % of the formulas of
// plan/model/activations.h, whose own test compares them to Korthikanti et al. 2022. The
// measurement counts allocations of libtorch's CPU allocator on the rank's thread. Selective
// recomputation gives bitwise the results of no recomputation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>

#include "weft/comm/replicate.h"
#include "weft/models/gpt.h"
#include "weft/models/gpt_blocks.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/parallel/recompute/testing/tensor_meter.h"
#include "weft/plan/model/activations.h"

namespace weft::models {
namespace gpt_memory_test {

using parallel::ContextParallel;
using parallel::Sequence;
using parallel::TensorMeter;
using parallel::TensorParallel;
using plan::Kept;

constexpr std::uint64_t kSeed = 3;

struct Case {
  GptOptions options;
  int tp = 1, cp = 1;
  Kept kept = Kept::kAll;
  std::int64_t batch = 2, length = 64;

  std::string name() const {
    return std::string(options.activation == Activation::kSwiglu ? "llama" : "gpt2") +
           ", dropout " + std::to_string(options.dropout) + ", tp " + std::to_string(tp) +
           (options.sequence == Sequence::kSplit ? " split" : "") + ", cp " + std::to_string(cp) +
           ", kept " + std::to_string(static_cast<int>(kept));
  }
};

GptOptions gpt2(double dropout) {
  GptOptions o{.vocabulary = 13, .layers = 1, .width = 32, .heads = 4, .sequence_length = 64};
  o.dropout = dropout;
  return o;
}

GptOptions llama(double dropout) {
  GptOptions o = like_llama(gpt2(dropout));
  o.kv_heads = 2;
  o.hidden = 96;
  return o;
}

std::int64_t expected(const Case& c) {
  const GptOptions& o = c.options;
  const plan::LayerShape layer{.batch = c.batch,
                               .sequence = c.length,
                               .width = o.width,
                               .heads = o.heads,
                               .hidden = o.hidden,
                               .gated = o.activation == Activation::kSwiglu,
                               .rms = o.norm == Norm::kRmsNorm};
  return plan::activation_bytes(layer, {.tp = c.tp,
                                        .split_sequence = o.sequence == Sequence::kSplit,
                                        .cp = c.cp,
                                        .dropout = o.dropout > 0,
                                        .kept = c.kept});
}

// Bytes that are still allocated after forward. They include the output but not the input, which
// has the same size.
std::int64_t kept_by(GptBlock& block, const at::Tensor& x, const TensorParallel& tp, Kept kept) {
  const TensorMeter meter;
  const auto forward = [&block](const at::Tensor& in) { return block.forward(in); };
  const parallel::PreserveState draws = parallel::preserve_draws(tp);
  const at::Tensor y =
      kept == Kept::kInput
          ? parallel::recompute_with({.random = false, .preserve = {draws}}, forward, x)
          : block.forward(x);
  EXPECT_TRUE(y.requires_grad());
  return meter.live();
}

// Ranks of a tp group are consecutive.
void compare(Case c) {
  c.options.selective = c.kept == Kept::kSelective;
  if (c.options.hidden == 0) c.options.hidden = 4 * c.options.width;
  if (c.options.kv_heads == 0) c.options.kv_heads = c.options.heads;
  replicate(c.tp * c.cp, [&](const Group& group) {
    const int place = group.rank() / c.tp, slice = group.rank() % c.tp;
    std::vector<int> along_cp, along_tp;
    for (int i = 0; i < c.cp; ++i) along_cp.push_back(i * c.tp + slice);
    for (int i = 0; i < c.tp; ++i) along_tp.push_back(place * c.tp + i);
    const TensorParallel tp(group.subgroup(along_tp, "tp"), kSeed);
    const ContextParallel cp(group.subgroup(along_cp, "cp"));
    GptBlock block(c.options, tp, cp);
    const std::int64_t rows = c.length / c.cp / (c.options.sequence == Sequence::kSplit ? c.tp : 1);
    const at::Tensor x = torch::ones({c.batch, rows, c.options.width}).requires_grad_();
    block.forward(x);  // The first forward also allocates the rotary angles.
    const auto kept = static_cast<double>(kept_by(block, x, tp, c.kept)),
               known = static_cast<double>(expected(c));
    // Another thread may free the keys and values that were sent. The meter of this thread does not
    // count that.
    const auto sent = static_cast<double>(c.cp > 1 ? 8 * c.batch * rows * c.options.width : 0);
    EXPECT_GE(kept, 0.9 * known) << c.name() << ": " << kept / known;
    EXPECT_LE(kept, 1.1 * known + sent) << c.name() << ": " << kept / known;
  });
}

TEST(GptMemory, OfABlockMatchesTheFormulasOnOneRank) {
  for (const double dropout : {0.0, 0.1}) {
    for (const Kept kept : {Kept::kAll, Kept::kSelective, Kept::kInput}) {
      compare({.options = gpt2(dropout), .kept = kept});
      compare({.options = llama(dropout), .kept = kept});
    }
  }
}

TEST(GptMemory, OfABlockMatchesTheFormulasOverRanks) {
  for (const double dropout : {0.0, 0.1}) {
    for (const Kept kept : {Kept::kAll, Kept::kSelective, Kept::kInput}) {
      for (const auto sequence : {Sequence::kWhole, Sequence::kSplit}) {
        GptOptions options = gpt2(dropout);
        options.sequence = sequence;
        compare({.options = options, .tp = 2, .kept = kept});
      }
      compare({.options = gpt2(dropout), .cp = 2, .kept = kept});
    }
  }
}

// Also if the auxiliary loss of its experts, whose graph leads through the block, is passed on.
TEST(GptMemory, OfARecomputedBlockWithExpertsIsItsInput) {
  GptOptions options = gpt2(0);
  options.hidden = 4 * options.width;
  options.kv_heads = options.heads;
  options.experts = 2;
  GptBlock part(options, TensorParallel());
  const engine::Block block = gpt_blocks(options).blocks[1].make({});
  parallel::RecomputeOptions recompute;
  recompute.random = false;
  const at::Tensor x = torch::ones({2, 64, options.width}).requires_grad_();
  // The output has the size of the input.
  const double most = 1.1 * static_cast<double>(x.nbytes());
  {
    const TensorMeter meter;
    const parallel::Tensors y = parallel::recompute_all(block.forward, {x}, recompute);
    ASSERT_EQ(y.size(), 2u);
    EXPECT_TRUE(y[1].requires_grad());
    EXPECT_LE(static_cast<double>(meter.live()), most);
  }
  const TensorMeter meter;
  const parallel::Tensors y = parallel::recompute_all(
      [&part](const parallel::Tensors& in) {
        const at::Tensor out = part.forward(in[0]);
        return parallel::Tensors{out, part.auxiliary()};
      },
      {x}, recompute);
  part.set_auxiliary(y[1]);
  EXPECT_LE(static_cast<double>(meter.live()), most);
}

// The peak of a step, above the memory in use before it, is close to the activations of all blocks
// if there are many positions and few weights. The second step is measured, so that the gradients
// of parameters are already allocated.
TEST(GptMemory, PeakOfAStepMatchesTheFormulasOfAllBlocks) {
  for (const Kept kept : {Kept::kAll, Kept::kSelective}) {
    Case c{.options = gpt2(0), .kept = kept, .batch = 4};
    c.options.hidden = 4 * c.options.width;
    c.options.kv_heads = c.options.heads;
    c.options.selective = kept == Kept::kSelective;
    const TensorParallel alone;
    constexpr int kLayers = 24;
    std::vector<std::shared_ptr<GptBlock>> blocks;
    for (int i = 0; i < kLayers; ++i)
      blocks.push_back(std::make_shared<GptBlock>(c.options, alone));
    const at::Tensor first = torch::ones({c.batch, c.length, c.options.width}).requires_grad_();
    std::int64_t peak = 0;
    for (int step = 0; step < 2; ++step) {
      const TensorMeter meter;
      at::Tensor x = first;
      for (const auto& block : blocks) x = block->forward(x);
      x.sum().backward();
      peak = meter.peak();
    }
    const auto known = static_cast<double>(kLayers * expected(c));
    EXPECT_NEAR(static_cast<double>(peak), known, 0.1 * known)
        << c.name() << ": " << static_cast<double>(peak) / known;
  }
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;
};

Trained train(GptOptions options, bool selective, const TensorParallel& tp,
              const ContextParallel& cp) {
  options.selective = selective;
  options.layers = 2;
  Gpt model(options, tp, cp);
  tp.seed_dropout(kSeed);
  Trained out;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor tokens = (torch::arange(2 * 16).view({2, -1}) * 7 + step) % options.vocabulary;
    const at::Tensor loss = model->loss(model->forward(tokens), (tokens + 1) % options.vocabulary);
    loss.backward();
    out.losses.push_back(loss.item<double>());
  }
  for (const auto& p : model->named_parameters()) out.gradients[p.key()] = p.value().grad().clone();
  return out;
}

void expect_same_bits(const GptOptions& options, int tensor, int context = 1) {
  replicate(tensor * context, [&](const Group& group) {
    std::vector<Trained> both;
    for (const bool selective : {false, true}) {
      const std::string names = selective ? "selective" : "kept";
      std::vector<int> all;
      for (int i = 0; i < group.size(); ++i) all.push_back(i);
      const TensorParallel tp(
          group.subgroup(tensor > 1 ? all : std::vector<int>{group.rank()}, names + " tp"), kSeed);
      const ContextParallel cp =
          context > 1 ? ContextParallel(group.subgroup(all, names + " cp")) : ContextParallel();
      both.push_back(train(options, selective, tp, cp));
    }
    EXPECT_EQ(both[0].losses, both[1].losses);
    for (const auto& [name, gradient] : both[0].gradients)
      EXPECT_TRUE(torch::equal(both[1].gradients.at(name), gradient)) << name;
  });
}

TEST(GptMemory, SelectiveRecomputationGivesTheSameBits) {
  for (const double dropout : {0.0, 0.2}) {
    for (const GptOptions& options : {gpt2(dropout), llama(dropout)}) {
      expect_same_bits(options, 1);
      expect_same_bits(options, 2);
      expect_same_bits(options, 1, 2);
    }
    GptOptions split = llama(dropout), experts = llama(dropout);
    split.sequence = Sequence::kSplit;
    split.chunks = 2;
    expect_same_bits(split, 2);
    experts.experts = 2;
    expect_same_bits(experts, 1);
  }
}

}  // namespace gpt_memory_test
}  // namespace weft::models
