// Store processes and their clients under a simulated network, clock and journal. Each seed draws
// nodes, delays and faults; clients work meanwhile. Whatever happens, the promises of store.h hold.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>

#include "weft/store/testing/simulated_clients.h"

namespace weft::store {
namespace seeds_test {

using internal::Flaw;
using namespace std::chrono_literals;
using Time = SimulatedCluster::Time;

constexpr std::uint32_t kFaultStream = 3;

struct Fault {
  enum Kind {
    kKill,
    kTear,
    kLose,
    kPause,
    kOneWay,
    kIsolate,
    kBridge,
    kSplit,
    kCut,
    kJump,
    kKinds
  };
  Kind kind = kKill;
  Time at{};
  Time lasts{};
  std::uint32_t node = 0;
  bool on_leader = false;
  std::uint64_t choice = 0;
};

const char* to_string(Fault::Kind kind) {
  static constexpr const char* kNames[] = {"kill",    "torn step", "lost host", "pause",
                                           "one-way", "isolation", "bridge",    "split",
                                           "cut",     "clock jump"};
  return kNames[kind];
}

struct Scenario {
  SimulatedCluster::Options options;
  std::vector<Fault> faults;
  Time calm{};  // after the start: all faults are over

  static Scenario draw(std::uint64_t seed, Flaw flaw);
  std::string describe() const;
};

Time draw_time(Random& random, Time from, Time to) {
  return from + Time(static_cast<Time::rep>(
                    random.below(static_cast<std::uint64_t>((to - from).count()))));
}

Scenario Scenario::draw(std::uint64_t seed, Flaw flaw) {
  static constexpr std::uint32_t kSizes[] = {1, 2, 2, 3, 3, 3, 3, 4, 5, 5, 7, 9};
  Random random(seed, kFaultStream);
  Scenario s;
  s.options.nodes = kSizes[random.below(std::size(kSizes))];
  s.options.seed = seed;
  s.options.flaw = flaw;
  s.options.latency = draw_time(random, 20us, random.below(4) == 0 ? Time(20ms) : Time(500us));
  s.options.jitter = random.below(3) == 0 ? Time(0) : draw_time(random, 1us, Time(5ms));
  s.options.duplicates = random.below(2) == 0 ? 0 : 0.1 * random.uniform();
  s.options.clock_skew = random.below(2) == 0 ? 0 : 0.01;
  s.options.encodes = seed % 8 == 0;
  for (std::uint64_t i = 1 + random.below(6); i > 0; --i) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(random.below(Fault::kKinds));
    fault.at = draw_time(random, 0ms, 3s);
    fault.lasts =
        random.below(2) == 0 ? draw_time(random, 1ms, 300ms) : draw_time(random, 300ms, 4s);
    fault.node = static_cast<std::uint32_t>(random.below(s.options.nodes));
    fault.on_leader = random.below(3) == 0;
    fault.choice = random.next_u64();
    s.calm = std::max(s.calm, fault.at + fault.lasts);
    s.faults.push_back(fault);
  }
  return s;
}

std::string Scenario::describe() const {
  const auto ms = [](Time time) { return std::chrono::duration<double, std::milli>(time).count(); };
  std::ostringstream out;
  out << options.nodes << " nodes, latency " << ms(options.latency) << " + " << ms(options.jitter)
      << " ms, duplicates " << options.duplicates << ", skew " << options.clock_skew << ";";
  for (const Fault& fault : faults)
    out << " " << to_string(fault.kind) << " of " << (fault.on_leader ? "the leader" : "node ")
        << (fault.on_leader ? "" : std::to_string(fault.node)) << " at " << ms(fault.at) << " for "
        << ms(fault.lasts) << " ms,";
  return out.str();
}

// Blocks messages between pairs of nodes for the time of the fault.
template <typename Blocks>
void partition(SimulatedCluster& cluster, Time lasts, const Blocks& blocks) {
  for (std::uint32_t a = 0; a < cluster.size(); ++a) {
    for (std::uint32_t b = 0; b < cluster.size(); ++b) {
      if (a == b || !blocks(a, b)) continue;
      cluster.block(a, b);
      cluster.after(lasts, [&cluster, a, b] { cluster.unblock(a, b); });
    }
  }
}

void happen(SimulatedCluster& cluster, const Fault& fault, std::uint64_t& jumps) {
  const std::uint32_t size = cluster.size();
  const std::uint32_t node = fault.on_leader ? cluster.leader().value_or(fault.node) : fault.node;
  const auto other = static_cast<std::uint32_t>(fault.choice % size);
  const auto side = [&](std::uint32_t at) { return (fault.choice >> at) & 1; };
  switch (fault.kind) {
    case Fault::kKill: return cluster.kill(node, fault.lasts);
    case Fault::kTear: return cluster.tear_next_step(node);
    case Fault::kLose: return cluster.lose(node, fault.lasts);
    case Fault::kPause: return cluster.pause(node, fault.lasts);
    case Fault::kOneWay:
      return partition(cluster, fault.lasts, [&](auto a, auto b) {
        return (fault.choice >> 40) % 2 == 0 ? a == node && b == other : a == node;
      });
    case Fault::kIsolate:
      return partition(cluster, fault.lasts,
                       [&](auto a, auto b) { return a == node || b == node; });
    case Fault::kBridge:  // the halves reach each other only over one node
      return partition(cluster, fault.lasts, [&](auto a, auto b) {
        return side(a) != side(b) && a != node && b != node;
      });
    case Fault::kSplit:
      return partition(cluster, fault.lasts, [&](auto a, auto b) { return side(a) != side(b); });
    case Fault::kCut:
      if (other != node) cluster.cut(node, other);
      return;
    case Fault::kJump:
      ++jumps;
      return cluster.jump_clock(node, fault.choice % 2 == 0 ? Time(1h) : Time(-1h));
    case Fault::kKinds: return;
  }
}

// What happened, so that a test can check that it tested something.
struct Tally {
  std::uint64_t answered = 0, woken = 0, leases = 0, kills = 0, losses = 0, torn = 0, blocked = 0,
                duplicated = 0, leaders = 0, members = 0, jumps = 0, messages = 0;
  std::uint64_t seen = 0;  // hash of all answers
};

void run_scenario(const Scenario& s, Tally& tally) {
  SimulatedCluster cluster(s.options);
  cluster.run_until(10s, [&] { return cluster.is_whole(); });
  if (!cluster.is_whole()) throw Violation("the nodes did not form a store");
  History history;
  std::uint64_t jumps = 0;
  const Time start = cluster.now(), calm = start + s.calm, stop = calm + 2s;
  std::vector<std::unique_ptr<SimulatedClient>> clients;
  const auto add = [&](std::uint32_t node, SimulatedClient::Role role) {
    clients.push_back(std::make_unique<SimulatedClient>(cluster, history, node, role));
    clients.back()->begin(stop);
  };
  for (std::uint32_t node = 0; node < std::min(cluster.size(), 3u); ++node) {
    add(node, SimulatedClient::Role::kCaller);
    add(node, SimulatedClient::Role::kReader);
  }
  add(0, SimulatedClient::Role::kWaiter);
  add(cluster.size() - 1, SimulatedClient::Role::kHolder);
  for (const Fault& fault : s.faults)
    cluster.after(fault.at, [&cluster, &fault, &jumps] { happen(cluster, fault, jumps); });
  const auto hangs = [](const auto& client) { return client->hangs(); };
  cluster.run_until(stop + 10s, [&] {
    return cluster.now() > stop + 50ms && std::none_of(clients.begin(), clients.end(), hangs) &&
           cluster.is_whole() && cluster.is_even() && cluster.node(0)->state().leases().empty();
  });
  if (std::any_of(clients.begin(), clients.end(), hangs)) throw Violation("a call did not end");
  history.check(jumps, s.options.clock_skew, calm + 1s);
  if (!cluster.is_whole()) throw Violation("the nodes did not form the store again");
  for (std::uint32_t node = 0; node < cluster.size(); ++node) {
    if (cluster.node(node)->state().snapshot() != cluster.node(0)->state().snapshot())
      throw Violation("the nodes hold different states");
    if (!cluster.node(node)->state().leases().empty()) throw Violation("a lease does not end");
  }
  const auto& counts = cluster.counts();
  tally.answered += history.answered;
  tally.woken += history.woken;
  tally.leases += history.leases.size();
  tally.kills += counts.kills;
  tally.losses += counts.losses;
  tally.torn += counts.torn_steps;
  tally.blocked += counts.blocked;
  tally.duplicated += counts.duplicated;
  tally.leaders += counts.leaders;
  tally.members += counts.members;
  tally.jumps += jumps;
  tally.messages += counts.messages;
  for (const History::Seen& one : history.seen)
    tally.seen = (tally.seen * 31 + static_cast<std::uint64_t>(one.end)) * 31 + one.revision;
}

// The broken promise; "" if none.
std::string violation(std::uint64_t seed, Flaw flaw, Tally& tally) {
  try {
    run_scenario(Scenario::draw(seed, flaw), tally);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string report(std::uint64_t seed, const std::string& what) {
  return "seed " + std::to_string(seed) + ": " + what + "\n  " +
         Scenario::draw(seed, Flaw::kNone).describe() +
         "\n  again: WEFT_SIM_SEED=" + std::to_string(seed) +
         " ctest --test-dir build/release -R store.SimulatedStore -V";
}

// Seeds until one shows that the rule is broken; 0: none does.
std::uint64_t seeds_until_noticed(Flaw flaw, std::uint64_t most) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < most; ++seed) {
    if (!violation(seed, flaw, tally).empty()) return seed + 1;
  }
  return 0;
}

void expect_promises(std::uint64_t first, std::uint64_t count, std::uint64_t threads) {
  std::atomic<std::uint64_t> next = first;
  std::mutex mutex;
  std::string failure;
  const auto work = [&] {
    Tally tally;
    for (std::uint64_t seed = next++; seed < first + count; seed = next++) {
      const std::string what = violation(seed, Flaw::kNone, tally);
      if (what.empty()) continue;
      const std::lock_guard lock(mutex);
      failure = report(seed, what);
      next = first + count;
    }
  };
  std::vector<std::jthread> workers;
  for (std::uint64_t i = 0; i < threads; ++i) workers.emplace_back(work);
  workers.clear();
  EXPECT_EQ(failure, "");
}

TEST(SimulatedStore, KeepsItsPromisesUnderFaults) {
  Tally tally;
  if (const char* text = std::getenv("WEFT_SIM_SEED")) {
    const auto seed = std::strtoull(text, nullptr, 10);
    const std::string what = violation(seed, Flaw::kNone, tally);
    if (!what.empty()) ADD_FAILURE() << report(seed, what);
    std::printf("seed %llu: %s\n", seed, Scenario::draw(seed, Flaw::kNone).describe().c_str());
    return;
  }
  constexpr std::uint64_t kSeeds = 300;
  for (std::uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    const std::string what = violation(seed, Flaw::kNone, tally);
    if (!what.empty()) ADD_FAILURE() << report(seed, what);
  }
  if (HasFailure()) return;
  EXPECT_GT(tally.answered, 100 * kSeeds);
  EXPECT_GT(tally.woken, kSeeds);
  EXPECT_GT(tally.leases, kSeeds);
  EXPECT_GT(tally.kills, kSeeds / 10);
  EXPECT_GT(tally.losses, kSeeds / 10);
  EXPECT_GT(tally.torn, kSeeds / 10);
  EXPECT_GT(tally.jumps, kSeeds / 10);
  EXPECT_GT(tally.blocked, kSeeds);
  EXPECT_GT(tally.duplicated, kSeeds);
  EXPECT_GT(tally.leaders, kSeeds * 5 / 4);
}

TEST(SimulatedStore, RepeatsTheRunOfASeed) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Tally first, second;
    EXPECT_EQ(violation(seed, Flaw::kNone, first), violation(seed, Flaw::kNone, second));
    EXPECT_EQ(first.messages, second.messages);
    EXPECT_EQ(first.answered, second.answered);
    EXPECT_EQ(first.seen, second.seen);
  }
}

TEST(SimulatedStoreSlow, KeepsItsPromisesForAHundredThousandSeeds) {
  const char* const text = std::getenv("WEFT_SIM_SEEDS");
  expect_promises(1000, text == nullptr ? 100'000 : std::strtoull(text, nullptr, 10), 2);
}

TEST(SimulatedStore, NoticesWhenARuleOfItsCoreIsBroken) {
  constexpr std::uint64_t kMost = 1000;
  for (const Flaw flaw : {Flaw::kReadsWithoutQuorum, Flaw::kVotesTwice, Flaw::kForgetsSessions,
                          Flaw::kCommitsAlone, Flaw::kOneStepChanges, Flaw::kTrustsClock}) {
    const std::uint64_t seeds = seeds_until_noticed(flaw, kMost);
    EXPECT_GT(seeds, 0u) << "flaw " << static_cast<int>(flaw);
  }
}

}  // namespace seeds_test
}  // namespace weft::store
