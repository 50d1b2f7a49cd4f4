#include "weft/net/shm.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "weft/net/internal/ranks.h"
#include "weft/net/internal/shm_region.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::in(20s); }

// Different for every sender, channel and place.
Bytes pattern(int from, Channel channel, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + (i >> 8) + static_cast<std::size_t>(from) * 7 + channel * 13);
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

void run_shm_threads(int world, const std::function<void(Endpoint&)>& fn, std::size_t ring_bytes = 0) {
  const auto endpoints = make_shm_threads(world, 7, ring_bytes);
  internal::run_ranks(world, [&](int rank) { fn(*endpoints[static_cast<std::size_t>(rank)]); });
}

// Every rank sends `size` bytes to every rank, itself included, and receives theirs, in one call.
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
  for (int peer = 0; peer < endpoint.world(); ++peer) EXPECT_EQ(theirs[static_cast<std::size_t>(peer)], pattern(peer, channel, size));
}

TEST(Shm, ExchangesMessagesOfEverySizeAmongAllRanks) {
  for (const int world : {1, 2, 3, 8}) {
    run_shm_threads(world, [](Endpoint& endpoint) {
      for (const std::size_t size : {0u, 1u, 8u, 16u, 17u, 63u, 64u, 1000u, 65536u, 100'001u}) everybody_to_everybody(endpoint, size, size);
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

TEST(Shm, KeepsMessagesThatAreNotExpectedYet) {
  run_shm_threads(2, [](Endpoint& endpoint) {
    const std::size_t size = 3'000'000;  // more than the ring holds
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
        for (const std::size_t size : {8u, 200'000u, 0u, 70'000u, 3u}) everybody_to_everybody(endpoint, size, channel);
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST(Shm, TellsWhoSentOnAChannelAndLeavesTheMessage) {
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

TEST(Shm, LeavesTheGroupWholeWhenAwaitAnyTimesOut) {
  const auto endpoints = make_shm_threads(2);
  EXPECT_EQ(code_of([&] { endpoints[0]->await_any(1, Deadline::in(1ms)); }), Errc::kTimeout);
  EXPECT_FALSE(endpoints[0]->failure());
}

TEST(Shm, RefusesAMessageOfAnotherLengthAndNamesBoth) {
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

TEST(Shm, RefusesPeersOutsideTheGroupAndImpossibleOptions) {
  const auto endpoints = make_shm_threads(1);
  EXPECT_EQ(code_of([&] { endpoints[0]->send(1, 1, {}, soon()); }), Errc::kInvalidArgument);
  EXPECT_FALSE(endpoints[0]->failure());
  EXPECT_EQ(code_of([] { make_shm_threads(2, 0, 5000); }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([] { make_shm_threads(0); }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([] { make_shm({.rank = 0, .world = 2, .region = {}, .owner = {}, .lost_peer = {}}); }), Errc::kInvalidArgument);
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

TEST(Shm, ReceivesWhatADepartedPeerSentAndThenMissesIt) {
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
  // The others hear of the same rank, whomever they wait for.
  EXPECT_EQ(code_of([&] { endpoints[2]->recv(1, 1, bytes, soon()); }), Errc::kPeerLost);
  EXPECT_EQ(code_of([&] { endpoints[2]->recv(0, 1, bytes, soon()); }), Errc::kPeerLost);
  EXPECT_EQ(endpoints[2]->failure()->context().peer, 1);
}

// Rank 0 over memory whose ring from rank 1 `scribble` writes; gives the error of a receive from rank 1.
Error after(const std::function<void(internal::RingView)>& scribble) {
  Bytes memory(shm_region_bytes(2));
  const std::span<std::byte> region(memory);
  const auto endpoint = make_shm({0, 2, 7, region, nullptr, {}, 0});
  scribble(internal::ShmRegion(region, 2, 0).ring(1, 0));
  std::byte byte{};
  try {
    endpoint->recv(1, 1, {&byte, 1}, Deadline::in(1s));
  } catch (const Error& error) {
    return error;
  }
  return Error(Errc::kInternal, "no error");
}

// The header as it lies in the ring.
struct RawHeader {
  std::uint64_t channel = 1, message = 0, total = 1, offset = 0;
  std::uint32_t length = 1, sequence = 0, epoch = 7, reserved = 0;
};

Error after_header(const RawHeader& header, std::uint64_t head = 64) {
  return after([&](internal::RingView ring) {
    std::memcpy(ring.data, &header, sizeof header);
    ring.indices->head.store(head);
  });
}

TEST(Shm, ReportsACorruptRingInsteadOfReadingPastIt) {
  const Error wild = after_header({}, ~std::uint64_t{0} - 63);
  EXPECT_EQ(wild.code(), Errc::kCorrupt);
  EXPECT_EQ(wild.context().peer, 1);
  EXPECT_EQ(after_header({}, 65).code(), Errc::kCorrupt) << "an index inside of a line";
  EXPECT_EQ(after_header({.length = 0xffffffffu}).code(), Errc::kCorrupt);
  EXPECT_EQ(after_header({.total = 100, .length = 100}).code(), Errc::kCorrupt) << "a frame longer than what was published";
  EXPECT_EQ(after_header({.offset = ~std::uint64_t{0}}).code(), Errc::kCorrupt);
  EXPECT_EQ(after_header({.sequence = 3}).code(), Errc::kCorrupt);
  EXPECT_EQ(after_header({.epoch = 6}).code(), Errc::kCorrupt) << "of another epoch";
  EXPECT_EQ(after_header({}).code(), Errc::kInternal) << "the header that the others spoil is a good one";
}

TEST(Shm, ReportsACorruptIndexOfTheReader) {
  Bytes memory(shm_region_bytes(2));
  const std::span<std::byte> region(memory);
  const auto endpoint = make_shm({0, 2, 7, region, nullptr, {}, 0});
  internal::ShmRegion(region, 2, 0).ring(0, 1).indices->tail.store(1u << 30);
  EXPECT_EQ(code_of([&] { endpoint->send(1, 1, Bytes(4'000'000), soon()); }), Errc::kCorrupt);
}

TEST(Shm, SurvivesAScribblingPeer) {
  std::uint64_t random = 0x9e3779b97f4a7c15u;
  for (int round = 0; round < 20; ++round) {
    const Error error = after([&](internal::RingView ring) {
      for (std::size_t i = 0; i < 4096; i += 8) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const std::uint64_t small = random >> (random % 64);
        std::memcpy(ring.data + i, &small, 8);
      }
      ring.indices->head.store((random >> 40) / 64 * 64);
    });
    EXPECT_EQ(error.code(), Errc::kCorrupt);
  }
}

}  // namespace
}  // namespace weft::net
