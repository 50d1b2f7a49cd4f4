// A rank that ends its calls for a reason of its own tells the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <thread>

#include "weft/base/testing/in_time.h"
#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net::internal {
namespace abort_test {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

// The next receive of `endpoint` from `peer` is aborted by rank 0.
void expect_aborted(Endpoint& endpoint, int peer, const char* why) {
  std::array<std::byte, 8> in;
  const Error error = error_of([&] { endpoint.recv(peer, 1, in, soon()); });
  EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
  EXPECT_EQ(error.context().peer, 0) << error.what();
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 failed"), HasSubstr(why)));
}

TEST(AbortTiming, EndsPendingAndLaterCallsOfAllRanksWithinASecond) {
  expect_within(1s, [](SlowestRank& slowest) {
    const Group group = make_tcp(3);
    const auto begin = Deadline::Clock::now();
    run_ranks(3, [&](int rank) {
      if (rank == 0) return group[0]->abort(Error(Errc::kUnavailable, "the disk is full"));
      for (int call = 0; call < 2; ++call) {
        expect_aborted(*group[rank], 3 - rank, "the disk is full");
        slowest.report_since(begin);
      }
    });
  });
}

TEST(Abort, IsNoticedWithoutAnyCall) {
  const Group group = make_tcp(2);
  group[0]->abort(Error(Errc::kUnavailable, "the disk is full"));
  for (const Deadline end = soon(); !group[1]->failure() && !end.passed();)
    std::this_thread::yield();
  ASSERT_TRUE(group[1]->failure());
  EXPECT_EQ(group[1]->failure()->code(), Errc::kAborted);
}

TEST(Abort, TellsTheOthersAlsoAfterAFailureThatTheyWereNotToldOf) {
  const Group group = make_tcp(2);
  group[0]->fail(Error(Errc::kAborted, "left"));
  std::array<std::byte, 8> in;
  EXPECT_EQ(error_of([&] { group[1]->await_any(1, Deadline::in(20ms)); }).code(), Errc::kTimeout);
  EXPECT_FALSE(group[1]->failure()) << "fail() does not communicate";
  group[0]->abort(Error(Errc::kAborted, "waits elsewhere"));
  expect_aborted(*group[1], 0, "waits elsewhere");
  EXPECT_THAT(error_of([&] { group[0]->recv(1, 1, in, soon()); }).what(), HasSubstr("left"));
}

TEST(Abort, ByAnAbandonedFlowTellsTheOthers) {
  const Group group = make_tcp(2);
  std::array<std::byte, 8> in;
  {
    const auto flow = group[0]->flow(1);
    flow->recv({1, in}, 0);
  }
  expect_aborted(*group[1], 0, "pending transfers were abandoned");
}

// The program's function stands for any allocation in the midst of a transfer.
TEST(Abort, ByMissingMemoryInATransferEndsTheGroupOnAllRanks) {
  const Group group = make_tcp(3);
  run_ranks(3, [&](int rank) {
    Label label = label_of(static_cast<char>('A' + rank));
    label.mismatch = [](int, const Label::Bytes&, int,
                        const Label::Bytes&) -> std::optional<Error> { throw std::bad_alloc(); };
    std::array<std::byte, 8> bytes{};
    if (rank == 1) {
      const Send send{0, bytes, &label};
      group[1]->exchange(2, {&send, 1}, {}, soon());
    }
    if (rank > 0) return expect_aborted(*group[rank], 3 - rank, "out of memory");
    const Recv recv{1, bytes, &label};
    const Error error = error_of([&] { group[0]->exchange(2, {}, {&recv, 1}, soon()); });
    EXPECT_EQ(error.code(), Errc::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("out of memory"));
  });
}

}  // namespace abort_test
}  // namespace weft::net::internal
