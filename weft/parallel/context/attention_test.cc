// Attention over 1 to 4 ranks against torch's scaled_dot_product_attention on one process: 1e-10
// relative and absolute in float64, 1e-5 in float32, 3e-2 in bfloat16.
#include "weft/parallel/context/attention.h"

#include <functional>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/counted_calls.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/net/memory/host.h"
#include "weft/parallel/context/testing/parity.h"

namespace weft::parallel {
namespace {

using context_parity::Case;
using context_parity::compare;
using context_parity::known;
using context_parity::wave;
using testing::HasSubstr;

void compare_over(const Case& c, std::initializer_list<int> worlds) {
  const context_parity::Answer answer = known(c);
  const auto on_rank = [&](Group group) {
    compare(c, answer, ContextParallel(std::move(group), c.method));
  };
  for (const int ranks : worlds) {
    replicate(ranks, on_rank);
    if (ranks > 1 && c.method == ContextMethod::kRing) comm::replicate_over_tcp(ranks, on_rank);
  }
}

TEST(RingAttention, EqualsTorchCausalOrNotInEachTypeForAnyLength) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t length : {24, 29, 5}) {  // with 5 positions, some chunks are empty
      compare_over({.length = length, .causal = causal}, {1, 2, 3, 4});
    }
    compare_over({.length = 29, .causal = causal, .type = at::kFloat}, {1, 2, 3, 4});
    compare_over({.length = 29, .causal = causal, .type = at::kBFloat16}, {1, 2, 4});
  }
}

TEST(RingAttention, SupportsGroupedQueriesAndDocuments) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t kv_heads : {2, 1}) {
      compare_over({.length = 27, .kv_heads = kv_heads, .causal = causal, .packed = kv_heads == 1},
                   {1, 2, 3, 4});
    }
    compare_over({.length = 27, .causal = causal, .packed = true, .type = at::kFloat}, {3});
    // One rank has no position.
    compare_over({.length = 1, .causal = causal, .packed = true}, {1, 2});
  }
}

TEST(RingAttention, ComputesMasksOfDocumentsInStrips) {
  compare_over({.length = 1100, .heads = 1, .kv_heads = 1, .packed = true}, {1, 2});
  compare_over({.length = 1100, .heads = 1, .kv_heads = 1, .causal = false, .packed = true}, {2});
}

TEST(HeadsAttention, EqualsTorchWithKeyHeadsThatDivideByTheRanksOrAreShared) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t kv_heads : {4, 2, 1}) {
      compare_over({.length = 27,
                    .kv_heads = kv_heads,
                    .causal = causal,
                    .packed = kv_heads == 2,
                    .method = ContextMethod::kHeads},
                   {1, 2, 4});
    }
    compare_over({.length = 28,
                  .heads = 6,
                  .kv_heads = 6,
                  .causal = causal,
                  .method = ContextMethod::kHeads},
                 {3});
    compare_over(
        {.length = 27, .causal = causal, .type = at::kFloat, .method = ContextMethod::kHeads}, {2});
    compare_over(
        {.length = 27, .causal = causal, .type = at::kBFloat16, .method = ContextMethod::kHeads},
        {2});
    compare_over({.length = 3, .causal = causal, .method = ContextMethod::kHeads}, {4});
  }
}

TEST(ContextAttention, HasTheSameDropoutAsOneProcessInEachType) {
  for (const auto method : {ContextMethod::kRing, ContextMethod::kHeads}) {
    for (const bool causal : {true, false}) {
      compare_over(
          {.length = 27, .kv_heads = 2, .causal = causal, .method = method, .dropout = 0.3},
          {1, 2, 4});
      compare_over(
          {.length = 27, .causal = causal, .packed = true, .method = method, .dropout = 0.3}, {2});
    }
    compare_over({.length = 5, .method = method, .dropout = 0.3}, {4});
    compare_over({.length = 29, .type = at::kFloat, .method = method, .dropout = 0.3}, {2});
    compare_over({.length = 29, .type = at::kBFloat16, .method = method, .dropout = 0.3}, {2});
  }
  compare_over({.length = 23, .heads = 2, .kv_heads = 1, .dropout = 0.5}, {3});
  // A block with several strips.
  compare_over({.length = 700, .heads = 1, .kv_heads = 1, .dropout = 0.3}, {1, 2});
}

// Bytes of each rank, by operation: forward and backward.
struct Bytes {
  std::vector<std::map<std::string, std::int64_t>> forward, backward;
};

using Replicate = std::function<void(int, const std::function<void(Group)>&)>;

Bytes count(const Case& c, int ranks, const Replicate& with_ranks) {
  const context_parity::Answer a = known(c);
  Bytes bytes{std::vector<std::map<std::string, std::int64_t>>(static_cast<std::size_t>(ranks)),
              {}};
  bytes.backward = bytes.forward;
  with_ranks(ranks, [&](const Group& group) {
    const ContextParallel cp(group, c.method);
    const auto rank = static_cast<std::size_t>(cp.rank());
    const auto mine = [&](const at::Tensor& x) {
      return cp.part(x.detach(), 2).to(c.type).requires_grad_();
    };
    const at::Tensor q = mine(a.q), k = mine(a.k), v = mine(a.v);
    comm::CountedCalls counted;
    net::Host* const host = group.host();
    std::int64_t before = 0;
    const auto take = [&] {
      auto all = counted.take_bytes();
      const std::int64_t read =
          host == nullptr ? 0 : static_cast<std::int64_t>(host->moved_bytes()) - before;
      if (read > 0) all["read"] = read;
      before += read;
      return all;
    };
    take();
    const at::Tensor y = context_attention(q, k, v, cp.layout(c.length), {.causal = c.causal}, cp);
    bytes.forward[rank] = take();
    y.sum().backward();
    bytes.backward[rank] = take();
  });
  return bytes;
}

Bytes count(const Case& c, int ranks) {
  return count(c, ranks, [](int n, const auto& fn) { replicate(n, fn); });
}

Bytes count_over_tcp(const Case& c, int ranks) {
  return count(c, ranks, [](int n, const auto& fn) { comm::replicate_over_tcp(n, fn); });
}

TEST(RingAttention, SendsTheDocumentedBytes) {
  for (const int ranks : {2, 3, 4}) {
    const std::int64_t length = 24, m = 2 * 2 * 2 * context_parity::kWidth,
                       chunk = length / (2 * ranks);
    const Bytes causal =
        count_over_tcp({.length = length, .kv_heads = 2, .type = at::kBFloat16}, ranks);
    std::int64_t forward = 0, backward = 0;
    for (int r = 0; r < ranks; ++r) {
      const int below = (r + ranks - 1) % ranks;
      EXPECT_EQ(causal.forward[static_cast<std::size_t>(r)].at("send"),
                m * 2 * chunk * (2 * (ranks - 1) - below))
          << ranks << " ranks, " << r;
      forward += causal.forward[static_cast<std::size_t>(r)].at("send");
      backward += causal.backward[static_cast<std::size_t>(r)].at("send");
    }
    EXPECT_EQ(4 * forward, 3 * m * 2 * length * (ranks - 1)) << "3/4 of what it is without a mask";
    EXPECT_EQ(backward, forward + 2 * forward) << "gradients are float32";
    const Bytes whole = count_over_tcp(
        {.length = length, .kv_heads = 2, .causal = false, .type = at::kFloat}, ranks);
    for (int r = 0; r < ranks; ++r) {
      const std::int64_t keys = m * 4 * (length / ranks) * (ranks - 1);
      EXPECT_EQ(whole.forward[static_cast<std::size_t>(r)].at("send"), keys);
      EXPECT_EQ(whole.backward[static_cast<std::size_t>(r)].at("send"), 2 * keys);
    }
  }
}

TEST(RingAttention, ReadsTheDocumentedBytesInPlaceAndSendsNone) {
  for (const int ranks : {2, 3, 4}) {
    const std::int64_t length = 24, m = 2 * 2 * 2 * context_parity::kWidth,
                       chunk = length / (2 * ranks);
    const Bytes causal = count({.length = length, .kv_heads = 2, .type = at::kBFloat16}, ranks);
    for (int r = 0; r < ranks; ++r) {
      const std::int64_t keys = m * 2 * chunk * (2 * (ranks - 1) - r),
                         gradients = m * 4 * chunk * (ranks - 1 + r);
      const auto rank = static_cast<std::size_t>(r);
      EXPECT_EQ(causal.forward[rank].at("read"), keys) << ranks << " ranks, " << r;
      EXPECT_EQ(causal.backward[rank].at("read"), keys + gradients) << ranks << " ranks, " << r;
      EXPECT_FALSE(causal.forward[rank].contains("send"));
      EXPECT_FALSE(causal.backward[rank].contains("send"));
    }
  }
}

TEST(HeadsAttention, ExchangesTheDocumentedBytes) {
  for (const std::int64_t kv_heads : {4, 1}) {
    for (const std::int64_t length : {24, 23}) {
      const Bytes sent = count({.length = length,
                                .kv_heads = kv_heads,
                                .type = at::kFloat,
                                .method = ContextMethod::kHeads},
                               2);
      // The input of an all-to-all includes the part that stays on the rank: (W - 1) / W of it are
      // sent.
      const std::int64_t handed =
          2 * context_parity::kWidth * 4 * 12 * (2 * 4 + 2 * std::max<std::int64_t>(kv_heads, 2));
      for (const auto& rank : sent.forward)
        EXPECT_EQ(rank, (std::map<std::string, std::int64_t>{{"all_to_all", handed}}));
      for (const auto& rank : sent.backward)
        EXPECT_EQ(rank, (std::map<std::string, std::int64_t>{{"all_to_all", handed}}));
    }
  }
}

TEST(ContextAttention, RejectsInvalidArguments) {
  replicate(2, [](Group group) {
    const ContextParallel ring(group), heads(group, ContextMethod::kHeads);
    const SequenceLayout layout = ring.layout(8);
    const auto of = [&](std::int64_t q_heads, std::int64_t kv_heads, std::int64_t length,
                        const ContextParallel& cp) {
      const at::Tensor q = wave({1, q_heads, length, 4}, 0), k = wave({1, kv_heads, length, 4}, 0);
      return refusal([&] { context_attention(q, k, k, layout, {}, cp); });
    };
    EXPECT_EQ(of(4, 2, 4, ring), "accepted");
    EXPECT_THAT(of(4, 3, 4, ring),
                HasSubstr("heads that divide q's; q is [1, 4, 4, 4], k [1, 3, 4, 4]"));
    EXPECT_THAT(of(4, 4, 5, ring), HasSubstr("of 8 positions over 2 ranks, rank " +
                                             std::to_string(ring.rank()) + " of 2 gave 5"));
    EXPECT_THAT(
        of(3, 3, 4, heads),
        HasSubstr(
            "3 heads do not divide by 2 ranks; the nearest that do are 2 and 4, or use the ring"));
    EXPECT_THAT(
        of(6, 3, 4, heads),
        HasSubstr(
            "3 heads of keys and values and 2 ranks do not divide one another; use the ring"));
    const at::Tensor q = wave({1, 2, 4, 4}, 0);
    const auto with = [&](const at::Tensor& documents) {
      return refusal([&] { context_attention(q, q, q, layout, {.documents = documents}, ring); });
    };
    EXPECT_THAT(
        with(torch::zeros({1, 4}, torch::kLong)),
        HasSubstr("documents must be int64 [1, 8] (batch, whole sequence), not Long [1, 4]"));
    const at::Tensor half = q.to(at::kHalf);
    EXPECT_THAT(refusal([&] { context_attention(half, half, half, layout, {}, ring); }),
                HasSubstr("float32, float64 or bfloat16"));
  });
}

}  // namespace
}  // namespace weft::parallel
