#include "weft/net/sim/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::net::sim {
namespace simulation_test {

using namespace std::chrono_literals;
using testing::HasSubstr;

double ms(Time time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::vector<std::byte> bytes_of(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + i * 31 + i / 251);
  return bytes;
}

// Rank 0 sends and rank 1 receives. Returns the time at which rank 1 has received everything.
Time send_and_time(const Options& options, std::size_t size) {
  Simulation simulation(options);
  Time received{0};
  std::vector<std::byte> in(size);
  const auto out = bytes_of(size, 1);
  const auto outcomes = simulation.run([&](Endpoint& endpoint) {
    if (endpoint.rank() == 0) endpoint.send(1, 5, out, simulation.in(100s));
    if (endpoint.rank() == 1) {
      endpoint.recv(0, 5, in, simulation.in(100s));
      received = simulation.now();
    }
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.error->what();
  EXPECT_TRUE(in == out);
  return received;
}

TEST(SimulatedNetwork, DelaysSmallMessagesByLatencyAndLargeOnesByBandwidth) {
  Options options{.link = {.latency = 2ms, .bytes_per_second = 1e9}};
  EXPECT_NEAR(ms(send_and_time(options, 8)), 2, 0.01);
  // 10 MB at 100 MB/s. A window of 64 KiB per stream over 20 us is not a limit.
  options.link = {.latency = 10us, .bytes_per_second = 1e8};
  const double large = ms(send_and_time(options, 10'000'000));
  EXPECT_GE(large, 100);
  EXPECT_LE(large, 105);
}

TEST(SimulatedNetwork, DeliversWholeMessagesInOrderDespiteLossDuplicatesAndReordering) {
  Simulation simulation(
      {.world = 3, .seed = 3, .link = {.jitter = 300us, .loss = 0.05, .duplicate = 0.05}});
  const auto outcomes = simulation.run([&](Endpoint& endpoint) {
    for (int i = 0; i < 20; ++i) {
      const std::size_t size = i % 5 == 0 ? 300'000 : 17 * i;
      const auto out = bytes_of(size, endpoint.rank() + i);
      std::vector<std::byte> in[2] = {std::vector<std::byte>(size), std::vector<std::byte>(size)};
      const int a = (endpoint.rank() + 1) % 3, b = (endpoint.rank() + 2) % 3;
      const Send sends[] = {{a, out}, {b, out}};
      const Recv recvs[] = {{a, in[0]}, {b, in[1]}};
      endpoint.exchange(1, sends, recvs, simulation.in(100s));
      EXPECT_TRUE(in[0] == bytes_of(size, a + i) && in[1] == bytes_of(size, b + i)) << i;
    }
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.error->what();
  const Counts& counts = simulation.counts();
  EXPECT_GT(counts.lost, 10u);
  EXPECT_GT(counts.duplicated, 10u);
  EXPECT_GT(counts.overtook, 10u);
  EXPECT_GT(counts.sent_again, 10u);
}

// All ranks repeat a barrier for 60 s unless a fault occurs.
std::vector<Outcome> endure(Simulation& simulation) {
  return simulation.run([&](Endpoint& endpoint) {
    while (simulation.now() < 60s) {
      std::byte out{}, in{};
      const int world = endpoint.world(), rank = endpoint.rank();
      const Send send{(rank + 1) % world, {&out, 1}};
      const Recv recv{(rank + world - 1) % world, {&in, 1}};
      endpoint.exchange(1, {&send, 1}, {&recv, 1}, simulation.in(30s));
      simulation.sleep(endpoint, 50ms);
    }
  });
}

struct Blow {
  Fault fault;
  Time noticed_by;  // time at which the last survivor has ended
};

void expect_blamed(const Blow& blow, const std::string& says) {
  Simulation simulation({.world = 4, .faults = {blow.fault}});
  const auto outcomes = endure(simulation);
  bool said = false;
  for (int rank = 0; rank < 4; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == blow.fault.a) continue;
    EXPECT_FALSE(outcome.hung);
    ASSERT_TRUE(outcome.error) << rank;
    EXPECT_EQ(outcome.error->code(), Errc::kPeerLost) << outcome.error->what();
    EXPECT_EQ(outcome.error->context().peer, blow.fault.a) << outcome.error->what();
    EXPECT_LE(ms(outcome.ended), ms(blow.noticed_by));
    said = said || std::string(outcome.error->what()).find(says) != std::string::npos;
  }
  EXPECT_TRUE(said) << says << ", "
                    << outcomes[static_cast<std::size_t>((blow.fault.a + 1) % 4)].error->what();
}

TEST(SimulatedFaults, AKilledProcessIsNamedByAllAtOnce) {
  expect_blamed({{Fault::kKill, 3s, 2}, 3500ms}, "connection was closed");
}

TEST(SimulatedFaults, AHostWithoutPowerIsNamedByAllAfterThePeerTimeout) {
  expect_blamed({{Fault::kPowerOff, 3s, 1}, 14s}, "rank 1 is lost");
}

TEST(SimulatedFaults, AStoppedProcessIsNamedByAllAfterThePeerTimeout) {
  expect_blamed({{Fault::kStop, 3s, 3}, 14s}, "nothing was heard of it for 10000 ms");
}

TEST(SimulatedFaults, APartitionThatHealsInTimeOnlyCostsTime) {
  Simulation simulation({.world = 3,
                         .faults = {{Fault::kPartition, 2s, 0, 1},
                                    {Fault::kHeal, 6s, 0, 1},
                                    {Fault::kStop, 20s, 2},
                                    {Fault::kContinue, 24s, 2}}});
  for (const Outcome& outcome : endure(simulation))
    EXPECT_FALSE(outcome.error) << outcome.error->what();
  EXPECT_GT(simulation.counts().blocked, 0u);
}

TEST(SimulatedFaults, APartitionThatStaysEndsTheGroupOnBothSides) {
  Simulation simulation({.world = 3, .faults = {{Fault::kPartition, 2s, 0, 1}}});
  for (const Outcome& outcome : endure(simulation)) {
    ASSERT_TRUE(outcome.error);
    EXPECT_THAT(outcome.error->what(), testing::ContainsRegex("rank [01] is lost"));
    EXPECT_LE(ms(outcome.ended), 13'500);
  }
}

TEST(SimulatedFaults, ADamagedByteIsDetectedAndNamesItsSender) {
  Simulation simulation({.world = 2, .faults = {{Fault::kDamage, 1s, 1, 0}}});
  const auto outcomes = endure(simulation);
  EXPECT_EQ(simulation.counts().damaged, 1u);
  ASSERT_TRUE(outcomes[0].error && outcomes[1].error);
  EXPECT_THAT(outcomes[0].error->what(), HasSubstr("Corrupt: "));
  EXPECT_THAT(outcomes[0].error->what(),
              HasSubstr("from rank 1: a frame's header fails its checksum"));
  EXPECT_EQ(outcomes[0].error->context().peer, 1);
  EXPECT_EQ(outcomes[1].error->code(), Errc::kAborted) << outcomes[1].error->what();
  EXPECT_EQ(outcomes[1].error->context().peer, 0);
}

// Rank 0 cannot tell rank 2 that it has failed. Rank 1 knows, passes it on, and leaves.
TEST(SimulatedFaults, AnAbortIsPassedOnToARankThatIsCutOffFromItsSender) {
  Simulation simulation({.world = 3, .faults = {{Fault::kPartition, 1s, 0, 2}}});
  const auto outcomes = simulation.run([&](Endpoint& endpoint) {
    std::byte byte{};
    const int awaited = endpoint.rank() == 1 ? 2 : 1;
    simulation.sleep(endpoint, 2s);
    endpoint.recv(awaited, 1, {&byte, 1}, simulation.in(endpoint.rank() == 0 ? 70ms : 100s));
  });
  ASSERT_TRUE(outcomes[0].error && outcomes[1].error && outcomes[2].error);
  EXPECT_EQ(outcomes[0].error->code(), Errc::kTimeout) << outcomes[0].error->what();
  for (const int rank : {1, 2}) {
    const Error& error = *outcomes[static_cast<std::size_t>(rank)].error;
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
    EXPECT_EQ(error.context().peer, 0) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 0 failed: Timeout"));
  }
}

TEST(SimulatedFaults, ADeadlineNamesTheAwaitedRank) {
  Simulation simulation({.world = 2});
  const auto outcomes = simulation.run([&](Endpoint& endpoint) {
    std::byte byte{};
    if (endpoint.rank() == 0) endpoint.recv(1, 1, {&byte, 1}, simulation.in(70ms));
    if (endpoint.rank() == 1) simulation.sleep(endpoint, 1s);
  });
  ASSERT_TRUE(outcomes[0].error);
  EXPECT_EQ(outcomes[0].error->code(), Errc::kTimeout);
  EXPECT_THAT(outcomes[0].error->what(), HasSubstr("from rank 1"));
  EXPECT_NEAR(ms(outcomes[0].ended), 70, 0.01);
}

TEST(SimulatedFaults, ARankThatWaitsForeverIsDetected) {
  Simulation simulation({.world = 2, .limit = 20s});
  const auto outcomes = simulation.run([&](Endpoint& endpoint) {
    std::byte byte{};
    if (endpoint.rank() == 0) endpoint.recv(1, 1, {&byte, 1}, simulation.in(1h));
    if (endpoint.rank() == 1) simulation.sleep(endpoint, 1h);
  });
  EXPECT_TRUE(outcomes[0].hung && outcomes[1].hung);
}

}  // namespace simulation_test
}  // namespace weft::net::sim
