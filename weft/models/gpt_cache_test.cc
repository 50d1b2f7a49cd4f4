// extend() with a cache is compared to forward() of all tokens at once: the logits of every
// position, over 1, 2 and 4 ranks (1e-10 in float64, 1e-5 in float32, relative and absolute).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>

#include "weft/base/error.h"
#include "weft/comm/replicate.h"
#include "weft/models/gpt.h"

namespace weft::models {
namespace gpt_cache_test {

using parallel::TensorParallel;
using testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;
constexpr std::int64_t kLength = 12;

GptOptions gpt2() {
  GptOptions o{.vocabulary = 13,
               .layers = 2,
               .width = 8,
               .heads = 4,
               .hidden = 16,
               .sequence_length = kLength};
  o.initial_std = 0.3;
  return o;
}

GptOptions llama() {
  GptOptions o = like_llama(gpt2());
  o.kv_heads = 2;  // Over 4 ranks, two ranks share each head of keys and values.
  return o;
}

GptOptions llama3() {
  GptOptions o = llama();
  o.head_width = 6;
  o.attention_bias = o.tied = true;
  o.rope_theta = 30;
  o.rope_scaling = {.factor = 4, .low = 1, .high = 4, .original = 16};
  return o;
}

GptOptions mixtral() {
  GptOptions o = llama();
  o.experts = 3;
  return o;
}

at::Tensor some_tokens(std::int64_t batch) {
  return (torch::arange(batch * kLength).view({batch, kLength}) * 7) % 13;
}

// Logits of extend() on consecutive pieces of the tokens.
at::Tensor extended(GptImpl& model, const at::Tensor& tokens,
                    const std::vector<std::int64_t>& pieces) {
  GptCache cache;
  std::vector<at::Tensor> logits;
  for (const std::int64_t count : pieces) {
    logits.push_back(model.extend(tokens.narrow(1, cache.length(), count), cache));
    EXPECT_FALSE(logits.back().requires_grad());
  }
  EXPECT_EQ(cache.length(), tokens.size(1));
  return torch::cat(logits, 1);
}

void compare(const GptOptions& options, at::ScalarType type) {
  const double most = type == at::kDouble ? 1e-10 : 1e-5;
  for (const int ranks : {1, 2, 4}) {
    replicate(ranks, [&](Group group) {
      Gpt model(options, TensorParallel(std::move(group), kSeed));
      model->to(type);
      model->eval();
      const at::Tensor tokens = some_tokens(3), want = model->forward(tokens).detach();
      const at::Tensor got = extended(*model, tokens, {5, 1, 1, 4, 1});
      ASSERT_EQ(got.sizes(), want.sizes());
      EXPECT_TRUE(torch::allclose(got, want, most, most))
          << ranks << " ranks: " << (got - want).abs().max().item<double>();
      GptCache cache;
      model->extend(tokens.narrow(1, 0, 7), cache);
      const at::Tensor last = model->extend(tokens.narrow(1, 7, 5), cache, Wanted::kLast);
      EXPECT_EQ(last.size(1), 1);
      EXPECT_TRUE(torch::allclose(last, want.narrow(1, kLength - 1, 1), most, most));
    });
  }
}

TEST(GptCache, GivesTheLogitsOfAllTokensAtOnceInFloat64) {
  for (const GptOptions& options : {gpt2(), llama(), llama3(), mixtral()})
    compare(options, at::kDouble);
}

TEST(GptCache, GivesTheLogitsOfAllTokensAtOnceInFloat32) {
  compare(gpt2(), at::kFloat);
  compare(llama3(), at::kFloat);
}

// Both continue the same five tokens.
TEST(GptCache, ACopyIsExtendedByItself) {
  for (const GptOptions& options : {gpt2(), llama()}) {
    Gpt model(options, TensorParallel());
    model->to(at::kDouble);
    model->eval();
    const at::Tensor tokens = some_tokens(2), others = (tokens + 1) % 13;
    GptCache cache;
    model->extend(tokens.narrow(1, 0, 4), cache);
    model->extend(tokens.narrow(1, 4, 1), cache);
    GptCache copy = cache;
    model->extend(tokens.narrow(1, 5, 1), cache);
    const void* const room = cache.blocks[0].keys.const_data_ptr();
    const at::Tensor of_copy = model->extend(others.narrow(1, 5, 1), copy),
                     last = model->extend(tokens.narrow(1, 6, 1), cache);
    EXPECT_EQ(cache.blocks[0].keys.const_data_ptr(), room) << "it has room for more";
    const auto wanted = [&](const at::Tensor& all) {
      return model->forward(all).detach().narrow(1, all.size(1) - 1, 1);
    };
    EXPECT_TRUE(torch::allclose(last, wanted(tokens.narrow(1, 0, 7)), 1e-10, 1e-10));
    EXPECT_TRUE(torch::allclose(
        of_copy, wanted(torch::cat({tokens.narrow(1, 0, 5), others.narrow(1, 5, 1)}, 1)), 1e-10,
        1e-10));
  }
}

TEST(GptCache, StoresOnlyTheRanksOwnHeads) {
  replicate(2, [](Group group) {
    Gpt model(llama(), TensorParallel(std::move(group), kSeed));
    GptCache cache;
    model->extend(some_tokens(3), cache);
    ASSERT_EQ(cache.blocks.size(), 2u);
    EXPECT_EQ(cache.blocks[1].keys.sizes(), (std::vector<std::int64_t>{3, 1, kLength, 2}))
        << "one of two heads of keys, two numbers wide";
  });
}

TEST(GptCache, RefusesTokensThatDoNotFitTheCache) {
  const auto refusal = [](GptOptions options,
                          const std::function<void(GptImpl&, GptCache&)>& call) -> std::string {
    Gpt model(options, TensorParallel());
    GptCache cache;
    try {
      call(*model, cache);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  };
  const auto twice = [](GptImpl& model, GptCache& cache) {
    model.extend(some_tokens(2), cache);
    model.extend(some_tokens(1).narrow(1, 0, 1), cache);
  };
  EXPECT_THAT(refusal(gpt2(), twice), HasSubstr("13 tokens, and positions for 12"));
  EXPECT_THAT(refusal(llama(), twice), HasSubstr("a batch of 1, but the cache is for another"));
  const auto once = [](GptImpl& model, GptCache& cache) { model.extend(some_tokens(2), cache); };
  GptOptions dropping = gpt2();
  dropping.dropout = 0.1;
  EXPECT_THAT(refusal(dropping, once), HasSubstr("eval()"));
  GptOptions split = gpt2();
  split.sequence = parallel::Sequence::kSplit;
  EXPECT_THAT(refusal(split, once), HasSubstr("not a split one"));
  GptOptions limited = mixtral();
  limited.experts_capacity = 1;
  EXPECT_THAT(refusal(limited, once), HasSubstr("does not support experts_capacity"));
}

}  // namespace gpt_cache_test
}  // namespace weft::models
