// Memory of this machine, as this process may use it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::observe {

struct MachineMemory {
  std::uint64_t total = 0;      // bytes
  std::uint64_t available = 0;  // bytes that can still be used without swapping, within the limit
  std::optional<std::uint64_t> limit;  // bytes; the lowest of this process's control groups
};

// Reads below `root`: proc/meminfo, proc/self/cgroup and sys/fs/cgroup. What cannot be read counts
// as 0, or as no limit.
MachineMemory machine_memory(const std::string& root = "/");

// Bytes of memory that this process holds, shared memory included. 0 where it cannot be read.
std::uint64_t process_memory(const std::string& root = "/");

}  // namespace weft::observe
