#include "weft/net/shm/shm.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "weft/net/shm/testing/shm_threads.h"
#include "weft/net/testing/ranks.h"

namespace weft::net {
namespace shm_test {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::in(20s); }

// Values that differ for every sender, channel and position.
Bytes pattern(int from, Channel channel, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + (i >> 8) + static_cast<std::size_t>(from) * 7 +
                                      channel * 13);
  return bytes;
}

Errc code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return Errc::kInternal;
}

void run_shm_threads(int world, const std::function<void(Endpoint&)>& fn,
                     std::size_t ring_bytes = 0) {
  const auto endpoints = make_shm_threads(world, 7, ring_bytes);
  internal::run_ranks(world, [&](int rank) { fn(*endpoints[static_cast<std::size_t>(rank)]); });
}

// Every rank exchanges `size` bytes with every rank, including itself, in one call.
void everybody_to_everybody(Endpoint& endpoint, std::size_t size, Channel channel) {
  const Bytes mine = pattern(endpoint.rank(), channel, size);
  std::vector<Bytes> theirs(static_cast<std::size_t>(endpoint.world()), Bytes(size));
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int peer = 0; peer < endpoint.world(); ++peer) {
    sends.push_back({peer, mine});
    recvs.push_back({peer, theirs[static_cast<std::size_t>(peer)]});
  }
  endpoint.exchange(channel, sends, recvs, soon());
  for (int peer = 0; peer < endpoint.world(); ++peer)
    EXPECT_EQ(theirs[static_cast<std::size_t>(peer)], pattern(peer, channel, size));
}

TEST(Shm, ExchangesMessagesOfEverySizeAmongAllRanks) {
  for (const int world : {1, 2, 3, 8}) {
    run_shm_threads(world, [](Endpoint& endpoint) {
      for (const std::size_t size : {0u, 1u, 8u, 16u, 17u, 63u, 64u, 1000u, 65536u, 100'001u})
        everybody_to_everybody(endpoint, size, size);
    });
  }
}

TEST(Shm, StreamsMessagesThatAreLargerThanTheRingBothWaysAtOnce) {
  run_shm_threads(2, [](Endpoint& endpoint) { everybody_to_everybody(endpoint, 10'000'001, 1); });
  run_shm_threads(
      3, [](Endpoint& endpoint) { everybody_to_everybody(endpoint, 300'007, 1); }, 4096);
}

TEST(Shm, KeepsTheOrderOfAChannelAndNoOrderAmongChannels) {
  run_shm_threads(2, [](Endpoint& endpoint) {
    constexpr Channel kChannels = 5;
    if (endpoint.rank() == 0) {
      for (int i = 0; i < 20; ++i) {
        for (Channel channel = 0; channel < kChannels; ++channel) {
          const auto value = static_cast<std::byte>(static_cast<Channel>(i) * kChannels + channel);
          endpoint.send(1, channel, {&value, 1}, soon());
        }
      }
    } else {
      for (Channel channel = kChannels; channel-- > 0;) {
        for (int i = 0; i < 20; ++i) {
          std::byte value{};
          endpoint.recv(0, channel, {&value, 1}, soon());
          ASSERT_EQ(static_cast<Channel>(value), static_cast<Channel>(i) * kChannels + channel);
        }
      }
    }
  });
}

// Message `number` of a mixture: small messages, pieces of the stream, and messages larger than the
// smallest ring.
std::size_t mixed_size(int number) {
  constexpr std::size_t kSizes[] = {8, 96, 97, 0, 1, 5000, 95, 300, 64, 1023, 8, 70'000, 33};
  return kSizes[static_cast<std::size_t>(number) % std::size(kSizes)];
}

TEST(Shm, KeepsTheOrderOfSmallAndLargeMessagesOnAChannel) {
  for (const std::size_t ring_bytes : {4096u, 65536u, 0u}) {
    run_shm_threads(
        2,
        [](Endpoint& endpoint) {
          for (int number = 0; number < 130; ++number) {
            const Bytes expected = pattern(number, 3, mixed_size(number));
            Bytes bytes(expected.size());
            if (endpoint.rank() == 0) endpoint.send(1, 3, expected, soon());
            if (endpoint.rank() == 0) continue;
            endpoint.recv(0, 3, bytes, soon());
            ASSERT_EQ(bytes, expected) << "message " << number;
          }
        },
        ring_bytes);
  }
}

TEST(Shm, KeepsTheOrderOfLargeMessagesInOneCallAndSmallOnesOneByOne) {
  run_shm_threads(2, [](Endpoint& endpoint) {
    std::vector<Bytes> lot;
    for (int number = 0; number < 26; ++number)
      lot.push_back(pattern(number, 4, mixed_size(number)));
    if (endpoint.rank() == 0) {
      std::vector<Send> sends;
      for (const Bytes& bytes : lot) sends.push_back({1, bytes});
      endpoint.exchange(4, sends, {}, soon());
      for (const Bytes& bytes : lot) endpoint.send(1, 4, bytes, soon());
      return;
    }
    for (const Bytes& expected : lot) {
      Bytes bytes(expected.size());
      endpoint.recv(0, 4, bytes, soon());
      ASSERT_EQ(bytes, expected);
    }
    std::vector<Bytes> got;
    std::vector<Recv> recvs;
    for (const Bytes& expected : lot) got.emplace_back(expected.size());
    for (Bytes& bytes : got) recvs.push_back({0, bytes});
    endpoint.exchange(4, {}, recvs, soon());
    EXPECT_EQ(got, lot);
  });
}

TEST(Shm, WrapsAroundTheRingManyTimes) {
  run_shm_threads(
      2,
      [](Endpoint& endpoint) {
        for (std::uint64_t number = 0; number < 20'000; ++number) {  // the ring has 8 slots
          std::uint64_t value = number * number;
          if (endpoint.rank() == 0)
            endpoint.send(1, number % 3, std::as_bytes(std::span(&value, 1)), soon());
          if (endpoint.rank() == 1)
            endpoint.recv(0, number % 3, std::as_writable_bytes(std::span(&value, 1)), soon());
          ASSERT_EQ(value, number * number);
        }
      },
      4096);
}

TEST(Shm, ServesManyThreadsAndChannelsWithMessagesOfAllSizes) {
  run_shm_threads(
      2,
      [](Endpoint& endpoint) {
        std::vector<std::thread> threads;
        for (Channel channel = 0; channel < 4; ++channel) {
          threads.emplace_back([&endpoint, channel] {
            const int peer = 1 - endpoint.rank();
            for (int number = 0; number < 52; ++number) {
              const Bytes mine = pattern(endpoint.rank() + number, channel, mixed_size(number));
              Bytes theirs(mine.size());
              if (endpoint.rank() == 0) endpoint.send(peer, channel, mine, soon());
              endpoint.recv(peer, channel, theirs, soon());
              if (endpoint.rank() == 1) endpoint.send(peer, channel, mine, soon());
              EXPECT_EQ(theirs, pattern(peer + number, channel, mixed_size(number)));
            }
          });
        }
        for (auto& thread : threads) thread.join();
      },
      4096);
}

// The smallest ring has 8 slots.
void fill_the_ring(Endpoint& endpoint) {
  for (std::byte i{0}; i < std::byte{8}; i = static_cast<std::byte>(static_cast<int>(i) + 1))
    endpoint.send(1, 1, {&i, 1}, soon());
}

TEST(Shm, KeepsTheDeadlineOfASmallMessageThatFindsTheRingFull) {
  const auto endpoints = make_shm_threads(2, 0, 4096);
  fill_the_ring(*endpoints[0]);
  try {
    endpoints[0]->send(1, 1, Bytes(1), Deadline::in(5ms));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_EQ(error.context().peer, 1);
  }
}

TEST(Shm, ContinuesWithASmallMessageWhenAFullRingIsRead) {
  const auto endpoints = make_shm_threads(2, 0, 4096);
  fill_the_ring(*endpoints[0]);
  std::thread sender([&] { endpoints[0]->send(1, 1, Bytes(1, std::byte{8}), soon()); });
  for (int i = 0; i <= 8; ++i) {
    std::byte value{99};
    endpoints[1]->recv(0, 1, {&value, 1}, soon());
    EXPECT_EQ(static_cast<int>(value), i);
  }
  sender.join();
}

TEST(Shm, KeepsUnexpectedMessages) {
  run_shm_threads(2, [](Endpoint& endpoint) {
    const std::size_t size = 3'000'000;  // larger than the ring
    if (endpoint.rank() == 0) {
      endpoint.send(1, 1, pattern(0, 1, size), soon());
      endpoint.send(1, 2, pattern(0, 2, 5), soon());
    } else {
      Bytes second(5);
      endpoint.recv(0, 2, second, soon());
      EXPECT_EQ(second, pattern(0, 2, 5));
      Bytes first(size);
      endpoint.recv(0, 1, first, soon());
      EXPECT_EQ(first, pattern(0, 1, size));
    }
  });
}

TEST(Shm, ServesTwoThreadsOfEachRankAtOnce) {
  run_shm_threads(3, [](Endpoint& endpoint) {
    std::vector<std::thread> threads;
    for (const Channel channel : {1, 2}) {
      threads.emplace_back([&endpoint, channel] {
        for (const std::size_t size : {8u, 200'000u, 0u, 70'000u, 3u})
          everybody_to_everybody(endpoint, size, channel);
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST(Shm, ReturnsTheSenderOnAChannelAndLeavesTheMessage) {
  run_shm_threads(3, [](Endpoint& endpoint) {
    if (endpoint.rank() != 0) return endpoint.send(0, 9, pattern(endpoint.rank(), 9, 10), soon());
    bool seen[3] = {};
    for (int i = 0; i < 2; ++i) {
      const int peer = endpoint.await_any(9, soon());
      Bytes bytes(10);
      endpoint.recv(peer, 9, bytes, soon());
      EXPECT_EQ(bytes, pattern(peer, 9, 10));
      seen[peer] = true;
    }
    EXPECT_TRUE(seen[1] && seen[2]);
  });
}

TEST(Shm, KeepsTheGroupIntactWhenAwaitAnyTimesOut) {
  const auto endpoints = make_shm_threads(2);
  EXPECT_EQ(code_of([&] { endpoints[0]->await_any(1, Deadline::in(1ms)); }), Errc::kTimeout);
  EXPECT_FALSE(endpoints[0]->failure());
}

TEST(Shm, RejectsAMessageOfAnotherLengthAndNamesBoth) {
  const auto endpoints = make_shm_threads(2);
  endpoints[0]->send(1, 1, Bytes(5), soon());
  Bytes three(3);
  try {
    endpoints[1]->recv(0, 1, three, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_NE(error.message().find("3 bytes"), std::string::npos);
    EXPECT_NE(error.message().find("5"), std::string::npos);
  }
  EXPECT_EQ(code_of([&] { endpoints[0]->send(1, 1, Bytes(1), soon()); }), Errc::kAborted);
}

TEST(Shm, RejectsPeersOutsideTheGroupAndInvalidOptions) {
  const auto endpoints = make_shm_threads(1);
  EXPECT_EQ(code_of([&] { endpoints[0]->send(1, 1, {}, soon()); }), Errc::kInvalidArgument);
  EXPECT_FALSE(endpoints[0]->failure());
  EXPECT_EQ(code_of([] { make_shm_threads(2, 0, 5000); }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([] { make_shm_threads(0); }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              make_shm({.rank = 0, .world = 2, .region = {}, .owner = {}, .lost_peer = {}});
            }),
            Errc::kInvalidArgument);
}

TEST(Shm, TimesOutNamingThePeerAndFailsTheGroupEverywhere) {
  const auto endpoints = make_shm_threads(3);
  std::byte byte{};
  try {
    endpoints[0]->recv(2, 1, {&byte, 1}, Deadline::in(5ms));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_EQ(error.context().peer, 2);
  }
  for (const auto& endpoint : endpoints) {
    EXPECT_EQ(code_of([&] { endpoint->send(0, 2, {&byte, 1}, soon()); }), Errc::kAborted);
    EXPECT_TRUE(endpoint->failure());
  }
}

TEST(Shm, EndsPendingAndLaterCallsWhenFailedByTheCaller) {
  const auto endpoints = make_shm_threads(2);
  std::thread waiter([&] {
    std::byte byte{};
    EXPECT_EQ(code_of([&] { endpoints[0]->recv(1, 1, {&byte, 1}, soon()); }), Errc::kAborted);
  });
  endpoints[0]->fail(Error(Errc::kUnavailable, "the disk is full"));
  endpoints[0]->fail(Error(Errc::kInternal, "a later one"));
  waiter.join();
  EXPECT_EQ(code_of([&] { endpoints[0]->await_any(1, soon()); }), Errc::kAborted);
  EXPECT_EQ(endpoints[0]->failure()->message(), "the disk is full");
  EXPECT_FALSE(endpoints[1]->failure()) << "fail() does not communicate";
}

TEST(Shm, AbortEndsTheCallsOfAllRanksWhichNameTheAbortedRankAndTheReason) {
  const auto endpoints = make_shm_threads(3);
  std::thread waiter([&] {
    std::byte byte{};
    for (int call = 0; call < 2; ++call) {
      try {
        endpoints[1]->recv(2, 1, {&byte, 1}, soon());
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kAborted);
        EXPECT_EQ(error.context().peer, 0);
        EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos);
      }
    }
  });
  endpoints[0]->abort(Error(Errc::kUnavailable, "the disk is full"));
  waiter.join();
  EXPECT_EQ(code_of([&] { endpoints[2]->await_any(1, soon()); }), Errc::kAborted);
}

TEST(Shm, ReceivesTheMessagesOfADepartedPeerAndThenReportsItLost) {
  auto endpoints = make_shm_threads(3);
  endpoints[1]->send(0, 1, pattern(1, 1, 100), soon());
  endpoints[1].reset();
  Bytes bytes(100);
  endpoints[0]->recv(1, 1, bytes, soon());
  EXPECT_EQ(bytes, pattern(1, 1, 100));
  try {
    endpoints[0]->recv(1, 1, bytes, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    EXPECT_EQ(error.context().peer, 1);
  }
  // The other ranks get the same lost rank, whichever peer they wait for.
  EXPECT_EQ(code_of([&] { endpoints[2]->recv(1, 1, bytes, soon()); }), Errc::kPeerLost);
  EXPECT_EQ(code_of([&] { endpoints[2]->recv(0, 1, bytes, soon()); }), Errc::kPeerLost);
  EXPECT_EQ(endpoints[2]->failure()->context().peer, 1);
}

}  // namespace shm_test
}  // namespace weft::net
