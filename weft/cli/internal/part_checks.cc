#include <sstream>

#include "weft/cli/internal/checks.h"
#include "weft/schedule/machine.h"

namespace weft::cli {
namespace {

using Grade = Finding::Grade;
using schedule::Machine;

std::string size(std::int64_t bytes) {
  std::ostringstream text;
  if (bytes >= std::int64_t{10} << 30) {
    text << (bytes >> 30) << " GiB";
  } else if (bytes >= 1 << 20) {
    text << (bytes >> 20) << " MiB";
  } else {
    text << (bytes >> 10) << " KiB";
  }
  return text.str();
}

Finding caches(const Machine& machine) {
  std::ostringstream found;
  found << machine.sockets << " socket(s), " << machine.cores << " core(s), "
        << machine.processors.size() << " processor(s)";
  for (std::size_t at = 0; at < machine.caches.size();) {
    const auto& first = machine.caches[at];
    std::size_t end = at;
    while (end < machine.caches.size() && machine.caches[end].level == first.level) ++end;
    found << "; L" << first.level << ' ' << end - at << " x " << size(first.bytes) << " for "
          << first.processors.size() << " processor(s)";
    at = end;
  }
  if (machine.caches.empty())
    return {"caches", Grade::kOk, found.str() + "; caches are not told here", ""};
  return {"caches", Grade::kOk, found.str(), ""};
}

Finding numa(const Machine& machine) {
  if (machine.numa_nodes.empty()) return {"NUMA", Grade::kOk, "nodes are not told here", ""};
  std::ostringstream found;
  found << machine.numa_nodes.size() << " node(s)";
  for (const auto& node : machine.numa_nodes)
    found << ", " << size(node.bytes) << " and " << node.processors.size() << " processor(s)";
  return {"NUMA", Grade::kOk, found.str(), ""};
}

Finding network(const Machine& machine) {
  std::ostringstream found;
  for (const auto& interface : machine.interfaces) {
    found << (found.str().empty() ? "" : ", ") << interface.name;
    if (!interface.up) found << " (down)";
    if (interface.up && interface.bandwidth)
      found << ' ' << *interface.bandwidth * 8 / 1e9 << " Gbit/s";
    if (interface.up && !interface.bandwidth) found << " (speed not told)";
  }
  return {"network", Grade::kOk, found.str().empty() ? "no interface but loopback" : found.str(),
          ""};
}

}  // namespace

std::vector<Finding> part_findings() {
  const Machine machine = schedule::find_machine();
  return {caches(machine), numa(machine), network(machine)};
}

}  // namespace weft::cli
