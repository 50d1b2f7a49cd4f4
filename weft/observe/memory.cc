#include "weft/observe/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace weft::observe {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;  // also for "max"
  return value;
}

// The number after `name` in a file of lines such as "MemTotal: 16000 kB" or "inactive_file 4096".
std::uint64_t field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return 0;
}

struct Controller {
  std::string folder, limit, usage, cache;  // file names; `cache`: a line of memory.stat
};

// Applies the limits of a cgroup and of all its parents. The kernel can reclaim inactive page
// cache, so that cache does not count as used.
void narrow(MachineMemory& memory, const Controller& files, std::string group) {
  for (;;) {
    const std::string folder = files.folder + group + "/";
    if (const auto limit = number_in(folder + files.limit); limit && *limit < memory.total) {
      const std::uint64_t cache = field(folder + "memory.stat", files.cache);
      const std::uint64_t usage = number_in(folder + files.usage).value_or(0),
                          used = usage - std::min(usage, cache);
      memory.limit = std::min(memory.limit.value_or(*limit), *limit);
      memory.available = std::min(memory.available, *limit - std::min(*limit, used));
    }
    if (group.empty()) return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  const std::string meminfo = root + "proc/meminfo", groups = root + "sys/fs/cgroup";
  MachineMemory memory;
  memory.total = field(meminfo, "MemTotal:") << 10;
  memory.available = field(meminfo, "MemAvailable:") << 10;
  const Controller v2{groups, "memory.max", "memory.current", "inactive_file"};
  const Controller v1{groups + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                      "total_inactive_file"};
  std::ifstream in(root + "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:memory:/a/b", or "0::/a/b"
    const auto controllers = line.find(':'), path = line.find(':', controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string names = line.substr(controllers + 1, path - controllers - 1);
    std::string group = line.substr(path + 1);
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (!group.empty() && group.front() != '/') continue;
    if (names.empty()) narrow(memory, v2, group);
    if (("," + names + ",").find(",memory,") != std::string::npos) narrow(memory, v1, group);
  }
  return memory;
}

std::uint64_t process_memory(const std::string& root) {
  return field(root + "proc/self/status", "VmRSS:") << 10;
}

std::uint64_t memory_share(const std::string& root) {
  const std::uint64_t share = field(root + "proc/self/smaps_rollup", "Pss:") << 10;
  return share > 0 ? share : process_memory(root);
}

std::uint64_t peak_memory(const std::string& root) {
  return field(root + "proc/self/status", "VmHWM:") << 10;
}

std::uint64_t peak_memory_share(const std::string& root) {
  const std::uint64_t peak = peak_memory(root), now = process_memory(root);
  return memory_share(root) + (peak > now ? peak - now : 0);
}

// proc(5): 5 resets the peak.
bool forget_peak_memory(const std::string& root) {
  std::ofstream out(root + "proc/self/clear_refs");
  out << "5" << std::flush;
  return static_cast<bool>(out);
}

}  // namespace weft::observe
