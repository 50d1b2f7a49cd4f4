#include "bench/suite/internal/core_sets.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace weft::cli::bench_internal {
namespace core_sets_test {

using schedule::Machine;

// `sockets` sockets of two cores with two processors each; a last-level cache for each socket.
Machine machine_of(int sockets) {
  Machine machine;
  for (int processor = 0; processor < 4 * sockets; ++processor)
    machine.processors.push_back(processor);
  for (int processor = 0; processor < 4 * sockets; processor += 2)
    machine.caches.push_back({1, 48 << 10, {processor, processor + 1}});
  for (int socket = 0; socket < sockets; ++socket) {
    const int first = 4 * socket;
    machine.caches.push_back({3, 32 << 20, {first, first + 1, first + 2, first + 3}});
  }
  return machine;
}

TEST(CoreSets, NearCoresShareTheLastCacheAndFarOnesDoNot) {
  const Machine machine = machine_of(2);
  const auto sets = core_sets(machine, machine.processors, 2);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "near");
  EXPECT_EQ(sets[0].processors, (std::vector<int>{0, 2}));  // 1 is the same core as 0
  EXPECT_EQ(sets[1].name, "far");
  EXPECT_EQ(sets[1].processors, (std::vector<int>{0, 4}));
  EXPECT_EQ(describe(sets), "near cores: 0, 2; far cores: 0, 4");
}

TEST(CoreSets, AMachineWithOneCacheHasNoFarCores) {
  const Machine machine = machine_of(1);
  EXPECT_EQ(describe(core_sets(machine, machine.processors, 2)),
            "near cores: 0, 2; far cores: none");
  EXPECT_EQ(describe(core_sets(machine, machine.processors, 4)),
            "near cores: none; far cores: none");
  EXPECT_EQ(describe(core_sets(Machine(), {0, 1}, 2)), "near cores: none; far cores: none");
}

TEST(CoreSets, FarCoresAreSpreadAndOnlyUsableOnesCount) {
  const Machine machine = machine_of(2);
  EXPECT_EQ(core_sets(machine, machine.processors, 4).back().processors,
            (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(describe(core_sets(machine, {1, 5, 6, 7}, 2)), "near cores: 5, 6; far cores: 1, 5");
}

TEST(CoreSets, TheProcessRunsOnThemAndLaterWhereItWasBefore) {
  const auto before = schedule::usable_processors();
  {
    const OnCores here({before.front()});
    EXPECT_EQ(schedule::usable_processors(), (std::vector<int>{before.front()}));
    EXPECT_EQ(std::getenv("WEFT_BENCH_CORES"), std::to_string(before.front()));
  }
  EXPECT_EQ(schedule::usable_processors(), before);
  EXPECT_EQ(std::getenv("WEFT_BENCH_CORES"), nullptr);
}

}  // namespace core_sets_test
}  // namespace weft::cli::bench_internal
