#include "weft/observe/memory.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "weft/base/file.h"

namespace weft::observe {
namespace {

namespace fs = std::filesystem;

// A machine with 1 GiB of memory, of which 512 MiB are available.
class Machine {
 public:
  explicit Machine(const std::string& groups) {
    write("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\n");
    write("proc/self/cgroup", groups);
  }
  void write(const std::string& file, const std::string& text) const {
    const fs::path path = folder_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  MachineMemory read() const { return machine_memory(root()); }
  std::string root() const { return folder_.path() + "/"; }

 private:
  TempDir folder_;
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(MachineMemory, IsTheMemoryOfTheMachineIfThereIsNoLimit) {
  const Machine machine("0::/\n");
  machine.write("sys/fs/cgroup/memory.max", "max\n");
  const auto memory = machine.read();
  EXPECT_EQ(memory.total, 1024 * kMiB);
  EXPECT_EQ(memory.available, 512 * kMiB);
  EXPECT_FALSE(memory.limit);
}

TEST(MachineMemory, IsLimitedByTheTightestParentCgroup) {
  const Machine machine("0::/pod/rank\n");
  machine.write("sys/fs/cgroup/pod/memory.max", "209715200\n");
  machine.write("sys/fs/cgroup/pod/memory.current", "104857600\n");
  machine.write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 52428800\n");
  machine.write("sys/fs/cgroup/pod/rank/memory.max", "max\n");
  const auto memory = machine.read();
  EXPECT_EQ(memory.limit, 200 * kMiB);
  EXPECT_EQ(memory.available, 150 * kMiB);
}

TEST(MachineMemory, SupportsCgroupsVersion1) {
  const Machine machine("5:cpu,cpuacct:/a\n4:memory:/a\n0::/a\n");
  machine.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n");
  machine.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "209715200\n");
  const auto memory = machine.read();
  EXPECT_EQ(memory.limit, 100 * kMiB);
  EXPECT_EQ(memory.available, 0u);
}

TEST(MachineMemory, CanBeReadOnThisMachine) {
  const auto memory = machine_memory();
  EXPECT_GT(memory.available, 0u);
  EXPECT_LE(memory.available, memory.total);
  EXPECT_EQ(machine_memory("/nowhere/").total, 0u);
}

TEST(ProcessMemory, GrowsWithTouchedMemory) {
  const std::uint64_t before = process_memory();
  EXPECT_GT(before, 0u);
  const std::vector<char> touched(32 * kMiB, 1);
  EXPECT_GE(process_memory(), before + 24 * kMiB) << touched[kMiB];
  EXPECT_EQ(process_memory("/nowhere/"), 0u);
}

TEST(PeakMemory, RemembersMemoryThatIsFreeAgainUntilItForgets) {
  const std::uint64_t held = process_memory();
  // Not from the heap, which may keep what is freed.
  void* const large = ::mmap(nullptr, 128 * kMiB, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(large, MAP_FAILED);
  ::munmap(large, 128 * kMiB);
  const std::uint64_t peak = peak_memory();
  EXPECT_GE(peak, held + 100 * kMiB);
  if (!forget_peak_memory()) GTEST_SKIP() << "the system does not let a process forget its peak";
  EXPECT_LT(peak_memory(), peak - 50 * kMiB);
}

TEST(PeakMemory, IsZeroWhereItCannotBeRead) {
  const Machine machine("0::/\n");
  EXPECT_EQ(peak_memory(machine.root()), 0u);
  machine.write("proc/self/status", "Name:\tweft\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n");
  EXPECT_EQ(peak_memory(machine.root()), 2048u << 10);
}

TEST(MemoryShare, CountsItsPartOfSharedPages) {
  const Machine machine("0::/\n");
  EXPECT_EQ(memory_share(machine.root()), 0u);
  machine.write("proc/self/status", "VmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n");
  EXPECT_EQ(memory_share(machine.root()), 1024u << 10) << "the system does not tell the share";
  EXPECT_EQ(peak_memory_share(machine.root()), 2048u << 10);
  machine.write("proc/self/smaps_rollup",
                "5500-7f00 ---p 00 00:00 0   [rollup]\nRss: 1024 kB\n"
                "Pss:                 600 kB\nPss_Dirty:  9 kB\n");
  EXPECT_EQ(memory_share(machine.root()), 600u << 10);
  EXPECT_EQ(peak_memory_share(machine.root()), 1624u << 10);
  EXPECT_GT(memory_share(), 0u);
  EXPECT_LE(memory_share(), process_memory() + kMiB);
}

}  // namespace
}  // namespace weft::observe
