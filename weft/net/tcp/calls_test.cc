#include "weft/net/internal/calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "weft/base/testing/in_time.h"
#include "weft/net/internal/failure.h"
#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net {
namespace calls_test {

using namespace std::chrono_literals;
using internal::Calls;
using internal::label_of;
using internal::make_tcp;
using internal::MismatchError;
using internal::run_ranks;
using testing::HasSubstr;

constexpr Channel kChannel = 5;

TEST(Calls, AreShownOnceWhenTheyHaveLastedForTwoTurns) {
  Calls calls(0, 2);
  EXPECT_TRUE(calls.due().empty());
  calls.begin(kChannel, 0, label_of('A'));
  EXPECT_TRUE(calls.due().empty());
  calls.begin(kChannel, 1, label_of('B'));
  EXPECT_TRUE(calls.due().empty());
  EXPECT_TRUE(calls.due().empty());
  const auto due = calls.due();
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].number, 1u);
  EXPECT_EQ(due[0].label, label_of('B').bytes);
  EXPECT_TRUE(calls.due().empty());
}

TEST(Calls, AreComparedIfTheyBeganBeforeOrAfterTheLabelArrived) {
  Calls calls(0, 3);
  calls.begin(kChannel, 0, label_of('A'));
  calls.shown(1, {kChannel, 0, label_of('A').bytes});
  EXPECT_THROW(calls.shown(2, {kChannel, 0, label_of('B').bytes}), MismatchError);
  calls.shown(1, {kChannel, 2, label_of('C').bytes});
  calls.begin(kChannel, 1, label_of('A'));
  EXPECT_THROW(calls.begin(kChannel, 2, label_of('A')), MismatchError);
}

TEST(Calls, OlderThanTheStoredOnesOrOfOtherChannelsAreNotCompared) {
  Calls calls(0, 2);
  for (std::uint64_t number = 0; number <= Calls::kKept; ++number)
    calls.begin(kChannel, number, label_of('A'));
  calls.shown(1, {kChannel, 0, label_of('B').bytes});
  calls.shown(1, {kChannel + 1, 5, label_of('B').bytes});
  EXPECT_THROW(calls.shown(1, {kChannel, 1, label_of('B').bytes}), MismatchError);
}

// By the message of another call that nobody receives.
TEST(Calls, AreComparedWithTheLabelOfAMessageThatNobodyAwaits) {
  const auto numbered = [](char c, std::uint64_t number) {
    Label label = label_of(c);
    std::memcpy(label.bytes.data() + label.bytes.size() - sizeof number, &number, sizeof number);
    return label;
  };
  Calls calls(0, 2);
  calls.begin(kChannel, 0, numbered('A', 0));
  calls.arrived(1, kChannel, numbered('A', 0).bytes);
  calls.arrived(1, kChannel, Label::Bytes{});
  calls.arrived(1, kChannel, numbered('B', 1'000'000).bytes);  // no call
  EXPECT_THROW(calls.arrived(1, kChannel, numbered('B', 0).bytes), MismatchError);
  calls.arrived(1, kChannel, numbered('B', 1).bytes);
  EXPECT_THROW(calls.begin(kChannel, 1, numbered('A', 1)), MismatchError);
}

TEST(TcpCallsTiming, DifferentCallsWithoutCommonMessagesEndOnEveryRankWithinASecond) {
  expect_within(1s, [](SlowestRank& slowest) {
    auto group = make_tcp(3);
    run_ranks(3, [&](int rank) {
      const Label label = label_of(rank == 2 ? 'B' : 'A');
      const auto start = Deadline::Clock::now();
      std::array<std::byte, 4> in{};
      const Recv recv{(rank + 1) % 3, in, &label};
      try {
        ASSERT_TRUE(group[rank]->begin_call(kChannel, 0, label));
        group[rank]->exchange(kChannel, {}, {&recv, 1}, Deadline::in(20s));
        ADD_FAILURE() << "rank " << rank << " received";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("I call"));
      }
      slowest.report_since(start);
    });
  });
}

TEST(TcpCalls, CallsAfterAMismatchReportItOnceAndAreThenAborted) {
  auto group = make_tcp(3);
  std::array<std::byte, 4> in{};
  run_ranks(2, [&](int rank) {
    const Label label = label_of(rank == 0 ? 'B' : 'A');
    const Send send{1 - rank, in, &label};
    std::array<std::byte, 4> mine{};
    const Recv recv{1 - rank, mine, &label};
    EXPECT_TRUE(group[rank]->begin_call(kChannel, 0, label));
    EXPECT_THROW(group[rank]->exchange(kChannel, {&send, 1}, {&recv, 1}, Deadline::in(20s)), Error);
  });
  const auto limit = Deadline::in(20s);
  while (!group[2]->failure() && !limit.passed()) std::this_thread::yield();
  ASSERT_TRUE(group[2]->failure());
  const auto code_of = [&](std::uint64_t number) {
    try {
      group[2]->begin_call(kChannel, number, label_of('A'));
    } catch (const Error& error) {
      return error.code();
    }
    return Errc::kInternal;
  };
  EXPECT_EQ(code_of(0), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(1), Errc::kAborted);
}

}  // namespace calls_test
}  // namespace weft::net
