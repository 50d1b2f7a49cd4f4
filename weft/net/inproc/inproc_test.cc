// Tests the contract of Endpoint on each transport with threads as ranks, then the properties of
// inproc.
#include "weft/net/inproc/inproc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "weft/base/testing/in_time.h"
#include "weft/net/shm/testing/shm_threads.h"
#include "weft/net/testing/fault_injector.h"
#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net {
namespace inproc_test {

using namespace std::chrono_literals;
using internal::error_of;
using internal::FaultyEndpoint;
using internal::Group;
using internal::pattern;
using internal::run_ranks;
using internal::soon;
using testing::HasSubstr;

struct Transport {
  const char* name;
  Group (*make)(int world);
};

class EndpointContract : public testing::TestWithParam<Transport> {
 protected:
  Group make(int world) const { return GetParam().make(world); }
};

TEST_P(EndpointContract, KnowsItsRankWorldAndName) {
  const Group group = make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->world(), 3);
    EXPECT_STREQ(group[rank]->name(), GetParam().name);
    EXPECT_FALSE(group[rank]->failure());
  }
}

TEST_P(EndpointContract, DeliversMessagesOfAllSizesUnchanged) {
  Group group = make(2);
  const std::size_t sizes[] = {
      0, 1, 63, 4096, 16 * 1024 + 1, 256 * 1024, 256 * 1024 + 1, 3 * 1024 * 1024 + 17};
  run_ranks(2, [&](int rank) {
    for (const std::size_t size : sizes) {
      const auto out = pattern(size, rank);
      std::vector<std::byte> in(size);
      const Send send{1 - rank, out};
      const Recv recv{1 - rank, in};
      group[rank]->exchange(7, {&send, 1}, {&recv, 1}, soon());
      EXPECT_TRUE(in == pattern(size, 1 - rank)) << size;
    }
  });
}

TEST_P(EndpointContract, AllToAllOfLargeMessagesInOneCallDoesNotDeadlock) {
  const int world = 4;
  Group group = make(world);
  run_ranks(world, [&](int rank) {
    std::vector<std::vector<std::byte>> out, in(world);
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (int peer = 0; peer < world; ++peer) out.push_back(pattern(1 << 20, rank * world + peer));
    for (int peer = 0; peer < world; ++peer) {
      in[peer].resize(1 << 20);
      sends.push_back({peer, out[peer]});
      recvs.push_back({peer, in[peer]});
    }
    group[rank]->exchange(1, sends, recvs, soon());
    for (int peer = 0; peer < world; ++peer)
      EXPECT_TRUE(in[peer] == pattern(1 << 20, peer * world + rank));
  });
}

TEST_P(EndpointContract, UnexpectedMessagesKeepTheirOrderOnEachChannel) {
  Group group = make(2);
  for (int i = 0; i < 50; ++i) {
    for (Channel channel : {5, 6}) {
      const auto out = pattern(1000 + i, i + static_cast<int>(channel));
      group[0]->send(1, channel, out, soon());
    }
  }
  for (Channel channel : {6, 5}) {
    for (int i = 0; i < 50; ++i) {
      std::vector<std::byte> in(1000 + i);
      group[1]->recv(0, channel, in, soon());
      EXPECT_TRUE(in == pattern(1000 + i, i + static_cast<int>(channel)));
    }
  }
}

TEST_P(EndpointContract, SendsToItself) {
  Group group = make(1);
  const auto out = pattern(5000, 1);
  std::vector<std::byte> in(5000);
  const Send send{0, out};
  const Recv recv{0, in};
  group[0]->exchange(3, {&send, 1}, {&recv, 1}, soon());
  EXPECT_TRUE(in == out);
}

TEST_P(EndpointContract, AwaitAnyReturnsTheSenderAndLeavesTheMessage) {
  Group group = make(3);
  const auto out = pattern(100, 2);
  group[2]->send(0, 9, out, soon());
  EXPECT_EQ(group[0]->await_any(9, soon()), 2);
  EXPECT_EQ(group[0]->await_any(9, soon()), 2);
  std::vector<std::byte> in(100);
  group[0]->recv(2, 9, in, soon());
  EXPECT_TRUE(in == out);
  EXPECT_EQ(error_of([&] { group[0]->await_any(9, Deadline::in(5ms)); }).code(), Errc::kTimeout);
  EXPECT_FALSE(group[0]->failure());  // no transfer was started, so the group is intact
}

TEST_P(EndpointContract, ReceivesFromAnyPeerThatMayBeTaken) {
  Group group = make(3);
  for (const int from : {1, 2}) group[from]->send(0, 9, pattern(100, from), soon());
  std::vector<std::byte> in(100);
  EXPECT_EQ(group[0]->recv_any(9, in, soon(), [](int peer) { return peer == 2; }), 2);
  EXPECT_TRUE(in == pattern(100, 2));
  std::atomic<int> asked = 0;  // the answer changes
  EXPECT_EQ(group[0]->recv_any(9, in, soon(), [&](int) { return ++asked > 2; }), 1);
  EXPECT_TRUE(in == pattern(100, 1));
  const auto none = [&] { group[0]->recv_any(9, in, Deadline::in(5ms), [](int) { return true; }); };
  EXPECT_EQ(error_of(none).code(), Errc::kTimeout);
}

TEST_P(EndpointContract, ManyThreadsOfOneRankUseTheirOwnChannels) {
  Group group = make(2);
  const int threads = 4;
  run_ranks(2 * threads, [&](int thread) {
    const int rank = thread % 2;
    const auto channel = static_cast<Channel>(thread / 2);
    for (int i = 0; i < 20; ++i) {
      const auto out = pattern(30'000, i + rank);
      std::vector<std::byte> in(30'000);
      const Send send{1 - rank, out};
      const Recv recv{1 - rank, in};
      group[rank]->exchange(channel, {&send, 1}, {&recv, 1}, soon());
      ASSERT_TRUE(in == pattern(30'000, i + 1 - rank));
    }
  });
}

TEST_P(EndpointContract, ADeadlineEndsAWaitAndNamesThePeer) {
  Group group = make(2);
  std::vector<std::byte> in(8);
  const Error error = error_of([&] { group[0]->recv(1, 1, in, Deadline::in(30ms)); });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_EQ(error.context().peer, 1);
  EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  EXPECT_EQ(error_of([&] { group[0]->recv(1, 1, in, soon()); }).code(), Errc::kAborted);
}

TEST_P(EndpointContract, ADifferentLengthIsAnErrorWithBothLengths) {
  for (const bool posted_first : {false, true}) {
    Group group = make(2);
    Error error(Errc::kInternal, "");
    const auto receive = [&] {
      std::vector<std::byte> in(8);
      error = error_of([&] { group[1]->recv(0, 4, in, soon()); });
    };
    const auto send = [&] {
      const auto out = pattern(16, 0);
      // If the receiver is faster, the sender already gets its failure.
      const Error seen = error_of([&] { group[0]->send(1, 4, out, soon()); });
      EXPECT_TRUE(seen.code() == Errc::kInternal || seen.code() == Errc::kAborted) << seen.what();
    };
    if (posted_first) {
      std::thread receiver(receive);
      send();
      receiver.join();
    } else {
      send();
      receive();
    }
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("receives 8 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("sent 16"));
  }
}

TEST_P(EndpointContract, FailEndsPendingAndLaterCallsAndCitesTheFirstError) {
  Group group = make(2);
  std::thread failing([&] { group[0]->fail(Error(Errc::kInternal, "the first")); });
  std::vector<std::byte> in(8);
  const Error pending = error_of([&] { group[0]->recv(1, 1, in, soon()); });
  failing.join();
  group[0]->fail(Error(Errc::kInternal, "the second"));
  const Error later = error_of([&] { group[0]->await_any(1, soon()); });
  for (const Error& error : {pending, later}) {
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("the first"));
  }
  EXPECT_THAT(group[0]->failure()->what(), HasSubstr("the first"));
}

TEST_P(EndpointContract, ADestroyedEndpointIsLostForAllRanksThatWaitForIt) {
  Group group = make(3);
  std::thread leaving([&] { group[2].reset(); });
  run_ranks(2, [&](int rank) {
    std::vector<std::byte> in(8);
    const Error error = error_of([&] { group[rank]->recv(2, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
    EXPECT_EQ(error.context().peer, 2);
    EXPECT_EQ(error.context().rank, rank);
    EXPECT_EQ(error_of([&] { group[rank]->recv(2, 1, in, soon()); }).code(), Errc::kPeerLost);
    const Error other = error_of([&] { group[rank]->recv(1 - rank, 1, in, soon()); });
    EXPECT_EQ(other.code(), Errc::kPeerLost) << "whichever peer it waits for";
    EXPECT_EQ(other.context().peer, 2);
  });
  leaving.join();
}

TEST_P(EndpointContract, ALostPeerEndsTheWaitsForOtherPeersToo) {
  Group group = make(3);
  std::vector<std::thread> ranks;
  ranks.emplace_back([&] {
    std::vector<std::byte> in(8);
    EXPECT_EQ(error_of([&] { group[0]->recv(2, 1, in, soon()); }).code(), Errc::kPeerLost);
  });
  ranks.emplace_back([&] {
    std::vector<std::byte> in(8);
    const Error error = error_of([&] { group[1]->recv(0, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
    EXPECT_EQ(error.context().peer, 2);
    EXPECT_EQ(group[1]->failure()->code(), Errc::kPeerLost);
  });
  group[2].reset();
  for (auto& rank : ranks) rank.join();
}

TEST_P(EndpointContract, MessagesSentBeforeLeavingAreStillReceived) {
  Group group = make(2);
  const auto large = pattern(3 << 20, 4);
  std::thread sender([&] {
    for (int i = 0; i < 3; ++i) group[0]->send(1, 2, large, soon());
    group[0].reset();
  });
  for (int i = 0; i < 3; ++i) {
    std::vector<std::byte> in(large.size());
    group[1]->recv(0, 2, in, soon());
    EXPECT_TRUE(in == large);
  }
  sender.join();
  EXPECT_FALSE(group[1]->failure());  // leaving in order is not a loss
}

TEST_P(EndpointContract, AWaitForAnyRankEndsWhenAllOthersHaveLeft) {
  Group group = make(3);
  const std::byte sent{7};
  group[1]->send(0, 9, {&sent, 1}, soon());
  group[1].reset();
  group[2].reset();
  EXPECT_EQ(group[0]->await_any(9, soon()), 1);
  std::byte in{};
  group[0]->recv(1, 9, {&in, 1}, soon());
  EXPECT_EQ(in, sent);
  const Error error = error_of([&] { group[0]->await_any(9, soon()); });
  EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("every other rank left"));
}

TEST_P(EndpointContract, AnInvalidPeerIsTheCallersErrorAndLeavesTheGroupIntact) {
  Group group = make(2);
  EXPECT_EQ(error_of([&] { group[0]->send(2, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_EQ(error_of([&] { group[0]->recv(-1, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(group[0]->failure());
}

TEST_P(EndpointContract, ASenderWaitsWhileTooManyBytesAreUnreceivedAndNothingIsLost) {
  Group group = make(2);
  const auto block = pattern(8 << 20, 1);
  const int count = 12;  // 96 MiB against 64 MiB of room
  std::thread sender([&] {
    for (int i = 0; i < count; ++i) group[0]->send(1, 1, block, soon());
    group[0]->send(1, 2, std::span(block).first(1), soon());
  });
  EXPECT_EQ(group[1]->await_any(1, soon()), 0);
  std::vector<std::byte> in(block.size());
  for (int i = 0; i < count; ++i) {
    group[1]->recv(0, 1, in, soon());
    ASSERT_TRUE(in == block);
  }
  group[1]->recv(0, 2, std::span(in).first(1), soon());
  sender.join();
}

// Within the limit of unexpected bytes, the awaited message would stay behind the others.
TEST_P(EndpointContract, ARankThatWaitsForAMessageTakesLargerOnesBeforeIt) {
  Group group = make(2);
  const std::vector<std::byte> large(30 << 20);
  const auto small = pattern(40'000, 2);
  const int count = 3;  // 90 MiB against 64 MiB of room
  std::vector<std::byte> in(small.size()), all(large.size());
  for (const bool has_deadline : {true, false}) {
    const auto before = group[0]->sent_bytes();
    std::thread first([&] {
      for (int i = 0; i < count; ++i) group[0]->send(1, 1, large, soon());
    });
    std::thread then([&] {
      while (group[0]->sent_bytes() < before + count * large.size()) std::this_thread::yield();
      group[0]->send(1, 2, small, soon());
    });
    EXPECT_EQ(group[1]->await_any(1, soon()), 0);
    if (!has_deadline) group[1]->wait_for(0, true);
    group[1]->recv(0, 2, in, has_deadline ? soon() : kNever);
    if (!has_deadline) group[1]->wait_for(0, false);
    for (int i = 0; i < count; ++i) group[1]->recv(0, 1, all, soon());
    first.join();
    then.join();
    EXPECT_TRUE(in == small);
  }
}

INSTANTIATE_TEST_SUITE_P(Inproc, EndpointContract,
                         testing::Values(Transport{"inproc",
                                                   [](int world) { return make_inproc(world); }}),
                         [](const auto&) { return "inproc"; });
INSTANTIATE_TEST_SUITE_P(Tcp, EndpointContract,
                         testing::Values(Transport{
                             "tcp", [](int world) { return internal::make_tcp(world); }}),
                         [](const auto&) { return "tcp"; });
INSTANTIATE_TEST_SUITE_P(LendingTcp, EndpointContract,
                         testing::Values(Transport{"tcp",
                                                   [](int world) {
                                                     return internal::make_tcp(
                                                         world, {.zero_copy = ZeroCopy::kAlways});
                                                   }}),
                         [](const auto&) { return "tcp"; });
INSTANTIATE_TEST_SUITE_P(Shm, EndpointContract,
                         testing::Values(Transport{
                             "shm", [](int world) { return make_shm_threads(world); }}),
                         [](const auto&) { return "shm"; });

TEST(EndpointTiming, ADeadlineEndsAWaitWithinTwoSeconds) {
  const auto tcp = [](int world) { return internal::make_tcp(world); };
  for (const Transport& transport :
       {Transport{"inproc", [](int world) { return make_inproc(world); }}, Transport{"tcp", tcp},
        Transport{"shm", [](int world) { return make_shm_threads(world); }}}) {
    expect_within(2s, [&](SlowestRank& slowest) {
      Group group = transport.make(2);
      std::vector<std::byte> in(8);
      const auto before = Deadline::Clock::now();
      EXPECT_EQ(error_of([&] { group[0]->recv(1, 1, in, Deadline::in(30ms)); }).code(),
                Errc::kTimeout)
          << transport.name;
      slowest.report_since(before);
    });
  }
}

TEST(Inproc, HasItsEpochAndRejectsAnEmptyGroup) {
  EXPECT_EQ(make_inproc(1, 5).front()->epoch(), 5u);
  EXPECT_EQ(error_of([] { make_inproc(0); }).code(), Errc::kInvalidArgument);
}

TEST(Inproc, AnAbortEndsTheCallsOfOtherRanksWithItsReason) {
  Group group = make_inproc(2);
  run_ranks(2, [&](int rank) {
    if (rank == 0) return group[0]->abort(Error(Errc::kAborted, "no data is left"));
    std::byte byte{};
    const Error error = error_of([&] { group[1]->recv(0, 1, {&byte, 1}, soon()); });
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_EQ(error.context().peer, 0);
    EXPECT_THAT(error.what(), HasSubstr("no data is left"));
  });
}

TEST(FaultyEndpoint, DropsHoldsDelaysCutsAndCounts) {
  Group group = make_inproc(2);
  FaultyEndpoint faulty(std::move(group[0]));
  const auto send = [&](int value) {
    const auto byte = static_cast<std::byte>(value);
    faulty.send(1, 1, {&byte, 1}, soon());
  };
  const auto next = [&] {
    std::byte byte{};
    group[1]->recv(0, 1, {&byte, 1}, soon());
    return static_cast<int>(byte);
  };
  faulty.drop(1, 1);
  send(1);
  send(2);
  EXPECT_EQ(next(), 2);
  faulty.hold(1);
  send(3);
  EXPECT_EQ(error_of([&] { group[1]->await_any(1, Deadline::in(1ms)); }).code(), Errc::kTimeout);
  faulty.release(soon());
  EXPECT_EQ(next(), 3);
  faulty.delay(1, 1, 2);
  send(4);
  EXPECT_EQ(error_of([&] { group[1]->await_any(1, Deadline::in(1ms)); }).code(), Errc::kTimeout);
  faulty.exchange(8, {}, {}, soon());
  faulty.exchange(8, {}, {}, soon());
  EXPECT_EQ(next(), 4);
  faulty.cut(1);
  const Error error = error_of([&] { send(5); });
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_EQ(error.context().peer, 1);
  EXPECT_EQ(faulty.counts().dropped, 1u);
  EXPECT_EQ(faulty.counts().delayed, 2u);
  EXPECT_EQ(faulty.counts().refused, 1u);
  EXPECT_EQ(faulty.counts().sends, 4u);
  EXPECT_EQ(faulty.counts().sent_bytes, 4u);
}

}  // namespace inproc_test
}  // namespace weft::net
