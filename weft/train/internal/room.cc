#include "weft/train/internal/room.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "weft/comm/texts.h"
#include "weft/observe/memory.h"

namespace weft::train::internal {
namespace {

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? "?" : id;
}

}  // namespace

std::string too_small(const Group& world, std::int64_t bytes, const std::string& what,
                      double share) {
  struct Host {
    std::uint64_t bytes = 0, available = UINT64_MAX;
  };
  std::map<std::string, Host> hosts;
  const std::string mine = boot_id() + " " + std::to_string(bytes) + " " +
                           std::to_string(observe::machine_memory().available);
  for (const std::string& text : comm::all_gather_texts(world, mine)) {
    std::istringstream words(text);
    std::string id;
    std::uint64_t of_rank = 0, available = 0;
    words >> id >> of_rank >> available;
    Host& host = hosts[id];
    host.bytes += of_rank;
    host.available = std::min(host.available, available);
  }
  for (const auto& [id, host] : hosts) {
    if (static_cast<double>(host.bytes) <= share * static_cast<double>(host.available)) continue;
    return "its ranks' " + what + " take " + std::to_string(host.bytes >> 20) + " MiB, and " +
           std::to_string(host.available >> 20) + " MiB are available";
  }
  return "";
}

}  // namespace weft::train::internal
