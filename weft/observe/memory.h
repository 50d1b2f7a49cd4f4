// Memory of this machine that this process may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::observe {

struct MachineMemory {
  std::uint64_t total = 0;      // bytes of the machine
  std::uint64_t available = 0;  // bytes that can still be used without swapping, within the limit
  std::optional<std::uint64_t> limit;  // bytes; the lowest limit of this process's control groups
};

// Reads proc/meminfo, proc/self/cgroup and sys/fs/cgroup below `root`. A number that cannot be read
// is 0; a limit that cannot be read is none.
MachineMemory machine_memory(const std::string& root = "/");

// Bytes of memory that this process holds (RSS, including shared memory). 0 if it cannot be read.
std::uint64_t process_memory(const std::string& root = "/");

// Bytes of this process's own memory, plus its equal part of each page that several processes use
// (PSS). Summed over the processes, this is what they use together. Where the system does not tell
// it: process_memory().
std::uint64_t memory_share(const std::string& root = "/");

// The most bytes that this process has held since the last forget_peak_memory(), or since it began;
// shared memory that it has used counts. 0 if it cannot be read.
std::uint64_t peak_memory(const std::string& root = "/");
// memory_share() at that peak, if the process gives back no page that others use, too.
std::uint64_t peak_memory_share(const std::string& root = "/");
// Lets peak_memory() start again with what the process holds now. False where the system does not
// allow it; the peak then stays.
bool forget_peak_memory(const std::string& root = "/");

}  // namespace weft::observe
