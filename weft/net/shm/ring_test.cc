// Tests rings that a peer has corrupted, and the counting of processors.
#include "weft/net/shm/internal/ring.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "weft/base/testing/in_time.h"
#include "weft/net/shm/internal/shm_region.h"
#include "weft/net/shm/shm.h"

namespace weft::net::internal {
namespace ring_test {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

// Returns the error of a call of rank 0 of 2, after `scribble` has written into the ring of writer
// `from`.
Error after(int from, const std::function<void(RingView)>& scribble,
            const std::function<void(Endpoint&)>& call) {
  Bytes memory(shm_region_bytes(2));
  const std::span<std::byte> region(memory);
  const auto endpoint = make_shm({0, 2, 7, region, nullptr, {}, 0});
  scribble(ShmRegion(region, 2, 0).ring(from, 1 - from));
  try {
    call(*endpoint);
  } catch (const Error& error) {
    return error;
  }
  return Error(Errc::kInternal, "no error");
}

void receive_one_byte(Endpoint& endpoint) {
  std::byte byte{};
  endpoint.recv(1, 1, {&byte, 1}, Deadline::in(1s));
}

// A slot that rank 1 may write.
struct RawSlot {
  std::uint64_t number = 0;
  std::uint32_t epoch = 7;
  RingSlot::Header header{.channel = 1, .message = 0, .length = 1, .streams = 0};
  RingSlot::Place place{.total = 1, .offset = 0};
};

void write(RingView ring, const RawSlot& raw) {
  ring.epoch = raw.epoch;
  ring.slots[0].header = raw.header;
  std::memcpy(ring.slots[0].bytes, &raw.place, sizeof raw.place);
  ring.slots[0].stamp.store(ring.stamp(raw.number));
}

Error after_slot(const RawSlot& raw) {
  return after(
      1, [&](RingView ring) { write(ring, raw); }, receive_one_byte);
}

RawSlot with_header(std::uint32_t length, std::uint32_t streams, RingSlot::Place place = {1, 0}) {
  return {.header = {.channel = 1, .message = 0, .length = length, .streams = streams},
          .place = place};
}

TEST(ShmRing, ReportsAnImpossibleSlot) {
  const Error number = after_slot({.number = 3});
  EXPECT_EQ(number.code(), Errc::kCorrupt);
  EXPECT_EQ(number.context().peer, 1);
  EXPECT_EQ(after_slot({.epoch = 6}).code(), Errc::kCorrupt) << "of another epoch";
  EXPECT_EQ(after_slot(with_header(97, 0)).code(), Errc::kCorrupt) << "longer than a slot";
  EXPECT_EQ(after_slot(with_header(0xffffffffu, 1)).code(), Errc::kCorrupt)
      << "longer than the longest piece";
  EXPECT_EQ(after_slot(with_header(1, 2)).code(), Errc::kCorrupt)
      << "neither here nor in the stream";
  EXPECT_EQ(after_slot(with_header(1, 1, {1, ~std::uint64_t{0}})).code(), Errc::kCorrupt)
      << "a piece outside of its message";
  EXPECT_EQ(after_slot(with_header(2, 1, {1, 0})).code(), Errc::kCorrupt)
      << "a piece longer than its message";
  EXPECT_EQ(after_slot({}).code(), Errc::kInternal)
      << "the slot that the others spoil is a good one";
  EXPECT_EQ(after_slot(with_header(1, 1)).code(), Errc::kInternal) << "and so is this one";
}

TEST(ShmRing, ReportsImpossibleCountsOfTheReader) {
  const auto send_much = [](Endpoint& endpoint) {
    endpoint.send(1, 1, Bytes(4'000'000), Deadline::in(1s));
  };
  const auto send_often = [](Endpoint& endpoint) {
    for (int i = 0; i < 1025; ++i) endpoint.send(1, 1, {}, Deadline::in(1s));
  };
  const auto bytes = [](RingView ring) { ring.indices->bytes_taken.store(std::uint64_t{1} << 30); };
  const auto slots = [](RingView ring) { ring.indices->slots_taken.store(~std::uint64_t{0}); };
  EXPECT_EQ(after(0, bytes, send_much).code(), Errc::kCorrupt);
  EXPECT_EQ(after(0, slots, send_often).code(), Errc::kCorrupt);
}

TEST(ShmRing, SurvivesAScribblingPeer) {
  std::uint64_t random = 0x9e3779b97f4a7c15u;
  for (int round = 0; round < 50; ++round) {
    const auto scribble = [&](RingView ring) {
      ring.epoch = 7;
      for (std::uint64_t number = 0; number < ring.num_slots; ++number) {
        RingSlot& slot = ring.slot(number);
        for (std::size_t at = 0; at < sizeof slot; at += 8) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          const std::uint64_t small = random >> (random % 64);
          std::memcpy(reinterpret_cast<std::byte*>(&slot) + at, &small, 8);
        }
        slot.header.streams %= 2;
        if (number % 16 != 15) slot.stamp.store(ring.stamp(number));
      }
    };
    EXPECT_EQ(after(1, scribble, receive_one_byte).code(), Errc::kCorrupt) << round;
  }
}

// Stamps wrap around at 2^32.
TEST(ShmRing, DistinguishesANewSlotFromThePreviousLapForever) {
  for (const std::uint32_t epoch : {0u, 7u}) {
    RingView ring;
    ring.num_slots = 8;
    ring.epoch = epoch;
    for (const std::uint64_t middle :
         {std::uint64_t{20}, std::uint64_t{1} << 32, std::uint64_t{5} << 32}) {
      for (std::uint64_t number = middle - 20; number < middle + 20; ++number)
        EXPECT_NE(ring.stamp(number), ring.stamp_before(number));
    }
  }
}

// The smallest ring of a group of two: 8 slots, 4096 bytes of stream.
constexpr std::size_t kSmall = 4096;

TEST(ShmRing, TellsTheReaderThatAQuarterOfTheSlotsIsFreeWhenTheWriterIsStuck) {
  Bytes memory(shm_region_bytes(2, kSmall));
  const RingView ring = ShmRegion(memory, 2, kSmall).ring(0, 1);
  RingWriter writer(ring);
  RingReader reader(ring);
  const auto push = [&] { return writer.push({}, nullptr).has_value(); };
  const auto take = [&] { return reader.front() != nullptr && reader.take(nullptr); };
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(push());
  EXPECT_FALSE(take());
  EXPECT_FALSE(take()) << "a writer that is not stuck needs no wake-up";
  EXPECT_TRUE(push());
  EXPECT_TRUE(push());
  EXPECT_FALSE(push());
  EXPECT_FALSE(take());
  EXPECT_TRUE(take());
  EXPECT_FALSE(take());
  EXPECT_FALSE(take()) << "the writer was woken";
}

TEST(ShmRing, TellsTheReaderThatAnEighthOfTheStreamIsFreeWhenTheWriterIsStuck) {
  Bytes memory(shm_region_bytes(2, kSmall));
  const RingView ring = ShmRegion(memory, 2, kSmall).ring(0, 1);
  RingWriter writer(ring);
  RingReader reader(ring);
  const Bytes piece(1000);
  Bytes place(1000);
  const auto push = [&] {
    return writer.push({.total = 1000, .length = 1000}, piece.data()).has_value();
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(push());
  EXPECT_FALSE(push());
  ASSERT_NE(reader.front(), nullptr);
  EXPECT_TRUE(reader.take(place.data()));
  EXPECT_TRUE(push());
}

TEST(ShmRegionTiming, WakesThreadsThatBeganToSleepBeforeAMessageArrived) {
  expect_within(1s, [](SlowestRank& slowest) {
    Bytes memory(shm_region_bytes(2, kSmall));
    ShmRegion region(memory, 2, kSmall);
    const auto sender = make_shm({0, 2, 0, memory, nullptr, {}, kSmall});
    const auto start = Deadline::Clock::now();
    for (const std::size_t size : {8u, 1000u, 100u}) {
      const std::uint32_t ticket = region.begin_sleep(1);
      std::thread sleeper([&] { region.sleep(1, ticket, 20s); });
      sender->send(1, 1, Bytes(size), Deadline::in(20s));
      sleeper.join();
      region.end_sleep(1);
    }
    slowest.report_since(start);
  });
}

void bind_to(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

TEST(ShmRegion, CountsTheProcessorsOfRanksBoundToOneEach) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &mine)) processors.push_back(i);
  }
  if (processors.size() < 2) GTEST_SKIP() << "needs two processors";
  Bytes memory(shm_region_bytes(2));
  ShmRegion region(memory, 2, 0);
  const auto sit_down = [&](int rank, int processor) {
    std::thread([&] {
      bind_to(processor);
      region.sit_down(rank);
    }).join();
  };
  sit_down(0, processors[0]);
  EXPECT_FALSE(region.crowd().everybody);
  sit_down(1, processors[1]);
  EXPECT_TRUE(region.crowd().everybody);
  EXPECT_FALSE(region.crowd().oversubscribed);
  sit_down(1, processors[0]);
  EXPECT_TRUE(region.crowd().oversubscribed) << "both on one";
}

}  // namespace ring_test
}  // namespace weft::net::internal
