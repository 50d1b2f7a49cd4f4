// Layout of positions, cutting and joining, means over ranks, and the effect of a lost rank on the
// others.
#include "weft/parallel/context/context_parallel.h"

#include <torch/nn/modules/linear.h>
#include <chrono>
#include <csignal>

#include "weft/base/testing/in_time.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/context/testing/parity.h"

namespace weft::parallel {
namespace {

using context_parity::wave;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(SequenceLayout, GivesEachRankAnEarlyAndALateChunk) {
  const SequenceLayout three{12, 3};
  EXPECT_TRUE(torch::equal(three.positions(0), torch::tensor({0, 1, 10, 11})));
  EXPECT_TRUE(torch::equal(three.positions(1), torch::tensor({2, 3, 8, 9})));
  EXPECT_TRUE(torch::equal(three.positions(2), torch::tensor({4, 5, 6, 7})));
}

TEST(SequenceLayout, CutsAnyLengthIntoPartsThatDifferByAtMostOne) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (std::int64_t whole = 0; whole <= 40; ++whole) {
      const SequenceLayout layout{whole, ranks};
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < ranks; ++rank) {
        all.push_back(layout.positions(rank));
        EXPECT_EQ(all.back().numel(), layout.length(rank));
        EXPECT_LE(layout.length(rank), layout.longest());
        EXPECT_GE(layout.length(rank), layout.longest() - 1);
        EXPECT_TRUE(torch::equal(std::get<0>(all.back().sort()), all.back()))
            << "a rank's positions rise";
      }
      EXPECT_TRUE(torch::equal(std::get<0>(torch::cat(all).sort()), torch::arange(whole)))
          << whole << " over " << ranks;
    }
  }
}

TEST(ContextParallel, CutsAndJoinsAndFindsTheWholeLengthFromTheParts) {
  for (const int ranks : {1, 2, 3}) {
    replicate(ranks, [&](Group group) {
      const ContextParallel cp(std::move(group));
      for (const std::int64_t length : {1, 7, 12}) {
        const at::Tensor whole = wave({2, length, 3}, 0.2);
        const at::Tensor part = cp.part(whole, 1);
        EXPECT_TRUE(
            torch::equal(part, whole.index_select(1, cp.layout(length).positions(cp.rank()))));
        EXPECT_TRUE(torch::equal(cp.whole(part, 1), whole));
        EXPECT_EQ(cp.layout_of_part(part.size(1)).whole, length);
      }
      if (ranks == 2) {
        EXPECT_THAT(refusal([&] { cp.layout_of_part(cp.rank() * 3); }),
                    HasSubstr("rank 0 has 0 of 3 positions, but its"));
      }
      EXPECT_THAT(refusal([&] {
                    (SequenceLayout{5, 2}.part(wave({4}, 0), 0, 0));
                  }),
                  HasSubstr("a sequence of 5"));
    });
  }
  EXPECT_THAT(refusal([] { ContextParallel().group(); }), HasSubstr("made without a group"));
}

TEST(ContextParallel, MeansAndAveragedGradientsEqualThoseOfTheWholeSequence) {
  const at::Tensor x = wave({7, 3}, 0.4);
  torch::nn::Linear one(3, 2);
  one->to(at::kDouble);
  const at::Tensor loss = one->forward(x).square().sum() / 7;
  loss.backward();
  for (const int ranks : {1, 2, 3}) {
    std::vector<double> values(static_cast<std::size_t>(ranks));
    replicate(ranks, [&](Group group) {
      const ContextParallel cp(std::move(group));
      torch::nn::Linear mine(3, 2);
      mine->to(at::kDouble);
      mine->weight.set_data(one->weight.detach().clone());
      mine->bias.set_data(one->bias.detach().clone());
      const at::Tensor part = cp.part(x, 0),
                       mean = cp.mean(mine->forward(part).square().sum(), part.size(0));
      context_parity::expect_close(mean.detach(), loss.detach(), "mean");
      values[static_cast<std::size_t>(cp.rank())] = mean.item<double>();
      mean.backward();
      average_gradients(*mine, cp);
      context_parity::expect_close(mine->weight.grad(), one->weight.grad(), "weight");
      context_parity::expect_close(mine->bias.grad(), one->bias.grad(), "bias");
      EXPECT_THAT(refusal([&] { cp.mean(torch::zeros({}), 0); }),
                  HasSubstr("no rank has a position that counts"));
    });
    for (const double value : values) EXPECT_EQ(value, values[0]) << "the same bits";
  }
}

// Repeats attention, forward and backward, until `end` acts at the third forward of a rank.
void attend(const ContextParallel& cp, int victim, const std::function<void()>& end) {
  for (int step = 0; step < 4; ++step) {
    const at::Tensor q = cp.part(wave({1, 2, 24, 4}, step), 2).requires_grad_();
    const at::Tensor y = context_attention(q, q, q, cp.layout(24), {}, cp);
    if (step == 2 && cp.rank() == victim) end();
    y.sum().backward();
  }
}

void kill_one(ContextMethod method, const char* transport, int victim, SlowestRank& slowest) {
  const int ranks = method == ContextMethod::kRing ? 3 : 2;
  const auto codes = comm::fork_ranks(ranks, transport, [&](const Group& group) {
    torch::set_num_threads(1);
    return comm::ends_with(Errc::kPeerLost, group, slowest, [&] {
      attend(ContextParallel(group, method), victim, [] { raise(SIGKILL); });
    });
  });
  std::vector<int> expected(static_cast<std::size_t>(ranks), 0);
  expected[static_cast<std::size_t>(victim)] = -SIGKILL;
  EXPECT_EQ(codes, expected) << transport;
}

TEST(ContextFailureTiming, AKilledRankIsPeerLostOnTheSurvivorsWithinFiveSeconds) {
  for (const auto method : {ContextMethod::kRing, ContextMethod::kHeads}) {
    for (const char* transport : {"shm", "tcp"}) {
      for (int victim = 0; victim < 2; ++victim) {
        expect_within(5s,
                      [&](SlowestRank& slowest) { kill_one(method, transport, victim, slowest); });
      }
    }
  }
}

TEST(ContextFailureTiming, ARankThatThrowsEndsAllRanksWithinFiveSeconds) {
  for (const auto method : {ContextMethod::kRing, ContextMethod::kHeads}) {
    const int ranks = method == ContextMethod::kRing ? 3 : 2;
    expect_within(5s, [&](SlowestRank& slowest) {
      const auto start = Clock::now();
      EXPECT_THROW(replicate(ranks,
                             [&](Group group) {
                               attend(ContextParallel(std::move(group), method), 1,
                                      [] { throw std::runtime_error("out of memory"); });
                             }),
                   std::runtime_error);
      slowest.report_since(start);
    });
  }
}

}  // namespace
}  // namespace weft::parallel
