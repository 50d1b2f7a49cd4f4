// Tests that flows in pieces give the same bits as execution round by round; also labels, and
// aborted or abandoned flows.
#include "weft/net/execute/internal/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "weft/base/testing/in_time.h"
#include "weft/net/execute/executor.h"
#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net {
namespace pipeline_test {

using namespace std::chrono_literals;
using internal::Group;
using internal::label_of;
using internal::run_ranks;
using internal::soon;
using schedule::Algorithm;
using schedule::Collective;
using schedule::Request;
using testing::HasSubstr;

std::vector<float> drawn(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<float> values(count);
  // Sums are rounded, so a different order changes them.
  for (float& value : values) value = static_cast<float>(random() >> 8) * 1e-5F;
  return values;
}

std::vector<std::vector<float>> results(Group& group, const Request& request, bool in_place) {
  std::vector<std::vector<float>> outputs(group.size());
  run_ranks(static_cast<int>(group.size()), [&](int rank) {
    Request q = request;
    q.rank = rank;
    q.world = static_cast<int>(group.size());
    const schedule::Schedule steps = schedule::make(q);
    std::vector<float> input = drawn(rank, static_cast<std::size_t>(steps.input));
    std::vector<float>& output = outputs[static_cast<std::size_t>(rank)];
    output.resize(static_cast<std::size_t>(steps.output));
    if (in_place && input.size() == output.size()) {
      output = input;
      run(steps, *group[rank],
          {.input = output.data(), .output = output.data(), .channel = 7, .deadline = soon()});
    } else {
      run(steps, *group[rank],
          {.input = input.data(), .output = output.data(), .channel = 7, .deadline = soon()});
    }
  });
  return outputs;
}

class InPieces : public testing::TestWithParam<int> {};

// inproc has no flows, so it is the round-by-round reference.
TEST_P(InPieces, GiveTheSameBitsAsRoundByRoundForEveryAlgorithmAndCollective) {
  const int world = GetParam();
  Group tcp = internal::make_tcp(world), inproc = make_inproc(world);
  ASSERT_NE(tcp[0]->flow(99), nullptr);
  ASSERT_EQ(inproc[0]->flow(99), nullptr);
  for (const Algorithm algorithm : schedule::algorithms()) {
    for (const Collective collective : schedule::collectives()) {
      if (algorithm == Algorithm::kDirect || collective == Collective::kBarrier ||
          !supports(algorithm, collective))
        continue;
      const Request q{.collective = collective,
                      .algorithm = algorithm,
                      .world = world,
                      .root = world - 1,
                      .count = 150'001};
      for (const bool in_place : {false, true}) {
        EXPECT_TRUE(results(tcp, q, in_place) == results(inproc, q, in_place))
            << to_string(algorithm) << " " << to_string(collective)
            << (in_place ? ", in place" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, InPieces, testing::Values(2, 3, 4));

TEST(Pieces, HaveTheSameLengthOnBothEndsAndABoundedNumber) {
  for (const std::size_t bytes : {1UL, 65'536UL, 65'537UL, 1UL << 20, 25'000'000UL, 1UL << 33}) {
    const std::size_t piece = internal::piece_bytes(bytes);
    EXPECT_EQ(piece % 4096, 0u);
    EXPECT_GE(piece, 65'536u);
    EXPECT_LE((bytes + piece - 1) / piece, 256u) << bytes;
  }
  EXPECT_GE(internal::piece_bytes(65'536), 65'536u);  // one piece
}

TEST(Labels, DifferentLabelsAreTheSameErrorOnEveryWaitingRank) {
  for (const bool tcp : {false, true}) {
    Group group = tcp ? internal::make_tcp(3) : make_inproc(3);
    run_ranks(3, [&](int rank) {
      const Label label = label_of(rank == 0 ? 'A' : 'B');
      std::array<std::byte, 4> out{}, in{};
      try {
        // Rank 2 waits for a rank with the same label.
        if (rank == 0) group[0]->send(1, 5, {}, soon());
        const Send send{1 - rank, out, &label};
        const Recv recv{rank == 2 ? 1 : 1 - rank, in, &label};
        group[rank]->exchange(rank == 2 ? 6 : 4, {&send, rank == 2 ? 0UL : 1UL}, {&recv, 1},
                              soon());
        ADD_FAILURE() << "rank " << rank << " received";
      } catch (const Error& error) {
        // kAborted if the group had ended before the call began.
        EXPECT_TRUE(error.code() == Errc::kInvalidArgument || error.code() == Errc::kAborted)
            << error.what();
        EXPECT_THAT(error.what(), HasSubstr("I call "));
        EXPECT_EQ(group[rank]->failure()->code(), Errc::kInvalidArgument);
      }
    });
  }
}

TEST(Labels, LabelsOfOneSideOnlyAreNotChecked) {
  Group group = internal::make_tcp(2);
  const Label label = label_of('A');
  std::array<std::byte, 4> out{std::byte{3}}, in{};
  const Send send{1, out};
  const Recv recv{0, in, &label};
  group[0]->exchange(4, {&send, 1}, {}, soon());
  group[1]->exchange(4, {}, {&recv, 1}, soon());
  EXPECT_EQ(in, out);
}

TEST(FlowTiming, ALocalAbortEndsAWaitWithinASecond) {
  expect_within(1s, [](SlowestRank& slowest) {
    Group group = internal::make_tcp(2);
    const auto flow = group[0]->flow(3);
    std::array<std::byte, 4> in{};
    flow->recv({1, in}, 0);
    std::thread failing([&] { group[0]->fail(Error(Errc::kInternal, "enough")); });
    const auto begin = Deadline::Clock::now();
    std::vector<std::uint32_t> done;
    try {
      flow->wait(done, soon());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kAborted);
      EXPECT_THAT(error.what(), HasSubstr("enough"));
    }
    slowest.report_since(begin);
    failing.join();
  });
}

TEST(Flow, DestroyingItWithPendingTransfersEndsTheGroup) {
  Group group = internal::make_tcp(2);
  {
    std::array<std::byte, 4> in{};
    const auto flow = group[0]->flow(3);
    flow->recv({1, in}, 0);
  }
  ASSERT_TRUE(group[0]->failure());
  EXPECT_EQ(group[0]->failure()->code(), Errc::kAborted);
}

}  // namespace pipeline_test
}  // namespace weft::net
