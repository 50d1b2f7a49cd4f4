#include "weft/schedule/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace weft::schedule {
namespace machine_test {

// A folder that looks like /sys.
class FakeSys {
 public:
  FakeSys() : root_(std::filesystem::path(::testing::TempDir()) / "weft-machine-test") {
    std::filesystem::remove_all(root_);
  }
  ~FakeSys() { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

// Two sockets, each with two cores of two threads, one NUMA node and a 32 MiB cache.
void put_two_sockets(const FakeSys& sys) {
  sys.put("devices/system/cpu/online", "0-7");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int socket = cpu / 4;
    const std::string at = "devices/system/cpu/cpu" + std::to_string(cpu) + "/",
                      all = socket == 0 ? "0-3" : "4-7";
    const std::string core = std::to_string(cpu / 2 * 2) + "-" + std::to_string(cpu / 2 * 2 + 1);
    sys.put(at + "topology/physical_package_id", std::to_string(socket));
    sys.put(at + "topology/core_id", std::to_string(cpu / 2 % 2));
    const auto cache = [&](int index, const char* level, const char* type, const char* size,
                           const std::string& shared) {
      const std::string folder = at + "cache/index" + std::to_string(index) + "/";
      sys.put(folder + "level", level);
      sys.put(folder + "type", type);
      sys.put(folder + "size", size);
      sys.put(folder + "shared_cpu_list", shared);
    };
    cache(0, "1", "Data", "48K", core);
    cache(1, "1", "Instruction", "32K", core);
    cache(2, "3", "Unified", "32M", all);
  }
  for (int node = 0; node < 2; ++node) {
    const std::string at = "devices/system/node/node" + std::to_string(node) + "/";
    sys.put(at + "cpulist", node == 0 ? "0-3" : "4-7");
    sys.put(at + "meminfo", "Node " + std::to_string(node) + " MemTotal:       16384 kB");
  }
  sys.put("devices/system/node/possible", "0-1");
  const auto interface = [&](const std::string& name, const char* type, const char* state,
                             const char* speed) {
    sys.put("class/net/" + name + "/type", type);
    sys.put("class/net/" + name + "/operstate", state);
    sys.put("class/net/" + name + "/speed", speed);
  };
  interface("lo", "772", "unknown", "");
  interface("eth1", "1", "down", "-1");
  interface("eth0", "1", "up", "10000");
}

TEST(Machine, IsReadFromTheKernelsFiles) {
  const FakeSys sys;
  put_two_sockets(sys);
  const Machine machine = find_machine(sys.root());
  EXPECT_EQ(machine.processors.size(), 8u);
  EXPECT_EQ(machine.cores, 4);
  EXPECT_EQ(machine.sockets, 2);
  ASSERT_EQ(machine.numa_nodes.size(), 2u);
  EXPECT_EQ(machine.numa_nodes[1].bytes, 16384 << 10);
  ASSERT_EQ(machine.caches.size(), 6u);  // four of level 1 (no instruction caches), two of level 3
  EXPECT_EQ(machine.caches[0].bytes, 48 << 10);
  EXPECT_EQ(machine.caches[5].bytes, 32 << 20);
  ASSERT_EQ(machine.interfaces.size(), 2u);
  EXPECT_EQ(machine.interfaces[0].name, "eth0");
  EXPECT_TRUE(machine.interfaces[0].up);
  EXPECT_DOUBLE_EQ(machine.interfaces[0].bandwidth.value(), 1.25e9);
  EXPECT_FALSE(machine.interfaces[1].bandwidth);

  EXPECT_EQ(machine.socket_of({4, 5}), 1);
  EXPECT_EQ(machine.numa_node_of({4, 5}), 1);
  EXPECT_EQ(machine.cache_of({4, 7}), 4);
  EXPECT_EQ(machine.socket_of({3, 4}), std::nullopt);
  EXPECT_EQ(machine.numa_node_of({3, 4}), std::nullopt);
  EXPECT_EQ(machine.cache_of({}), std::nullopt);
}

TEST(Machine, IsUnknownWithoutTheKernelsFiles) {
  const Machine machine = find_machine("/nowhere");
  EXPECT_TRUE(machine.processors.empty() && machine.numa_nodes.empty() && machine.caches.empty() &&
              machine.interfaces.empty());
  EXPECT_EQ(machine.cache_of({0}), std::nullopt);
}

TEST(Machine, ReadsTheValidPartOfListsOfProcessors) {
  EXPECT_EQ(parse_processors("0-2,8,10-11"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(parse_processors("5"), std::vector<int>{5});
  EXPECT_EQ(parse_processors("3-1"), std::vector<int>{});
  EXPECT_EQ(parse_processors("1,x"), std::vector<int>{1});
  EXPECT_EQ(parse_processors("0-99999999"), std::vector<int>{});
  EXPECT_EQ(parse_processors(""), std::vector<int>{});
}

TEST(FoundTopology, OmitsLevelsWithoutInformation) {
  // Unequal hosts of 2 and 1 ranks, none of them bound.
  const Topology unequal = topology_of({{"a"}, {"a"}, {"b"}});
  EXPECT_EQ(unequal, Topology::hosts({2, 1}));
  // One host with four ranks on two NUMA nodes; the sockets are the same groups as the nodes.
  const Topology nodes =
      topology_of({{"a", 0, 0, 0}, {"a", 1, 1, 4}, {"a", 0, 0, 0}, {"a", 1, 1, 4}});
  ASSERT_EQ(nodes.num_levels(), 2);
  EXPECT_EQ(nodes.level(0).scope, Scope::kHost);
  EXPECT_EQ(nodes.level(1).scope, Scope::kSocket);
  EXPECT_EQ(nodes.members(1, 0), (std::vector<int>{0, 2}));
  // Equal numbers on two hosts are two different parts.
  const Topology both =
      topology_of({{"a", 0, 0}, {"a", 0, 0}, {"a", 0, 1}, {"b", 0, 0}, {"b", 0, 0}});
  ASSERT_EQ(both.num_levels(), 3);
  EXPECT_EQ(both.level(2).scope, Scope::kNuma);
  EXPECT_EQ(both.num_groups(2), 3);
  // Each rank on its own host, and a single rank.
  EXPECT_EQ(topology_of({{"a"}, {"b"}, {"c"}}), Topology::flat(3));
  EXPECT_EQ(topology_of({{"a"}}).world(), 1);
}

}  // namespace machine_test
}  // namespace weft::schedule
