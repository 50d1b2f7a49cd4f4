#include "bench/suite/internal/core_sets.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

namespace weft::cli::bench_internal {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The usable processors of a cache, without the second processor of a core: cores are told apart by
// their first-level caches.
std::vector<int> cores_of(const schedule::Machine& machine, const schedule::Cache& cache,
                          const std::vector<int>& usable) {
  std::vector<int> cores;
  for (const int processor : cache.processors) {
    const bool taken = std::any_of(
        machine.caches.begin(), machine.caches.end(), [&](const schedule::Cache& first) {
          return first.level == 1 && contains(first.processors, processor) &&
                 std::any_of(cores.begin(), cores.end(),
                             [&](int core) { return contains(first.processors, core); });
        });
    if (contains(usable, processor) && !taken) cores.push_back(processor);
  }
  return cores;
}

void set_affinity(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

std::string joined(const std::vector<int>& processors, const char* between) {
  std::string text;
  for (const int processor : processors)
    text += (text.empty() ? "" : between) + std::to_string(processor);
  return text;
}

constexpr const char* kVariable = "WEFT_BENCH_CORES";

}  // namespace

std::vector<CoreSet> core_sets(const schedule::Machine& machine, const std::vector<int>& usable,
                               int ranks) {
  int last = 0;
  for (const auto& cache : machine.caches) last = std::max(last, cache.level);
  std::vector<std::vector<int>> groups;  // the cores of each last-level cache
  for (const auto& cache : machine.caches) {
    if (cache.level != last) continue;
    auto cores = cores_of(machine, cache, usable);
    if (!cores.empty()) groups.push_back(std::move(cores));
  }
  const auto wanted = static_cast<std::size_t>(ranks);
  std::vector<CoreSet> sets;
  for (const auto& group : groups) {
    if (group.size() < wanted || last < 2) continue;
    sets.push_back({"near", {group.begin(), group.begin() + ranks}});
    break;
  }
  std::vector<int> spread;
  for (std::size_t i = 0; groups.size() > 1 && i < usable.size(); ++i)
    for (const auto& group : groups)
      if (i < group.size() && spread.size() < wanted) spread.push_back(group[i]);
  std::sort(spread.begin(), spread.end());
  if (ranks > 1 && spread.size() == wanted) sets.push_back({"far", std::move(spread)});
  return sets;
}

std::string describe(const std::vector<CoreSet>& sets) {
  std::string text;
  for (const char* name : {"near", "far"}) {
    const auto found =
        std::find_if(sets.begin(), sets.end(), [&](const auto& one) { return one.name == name; });
    text += std::string(text.empty() ? "" : "; ") + name +
            " cores: " + (found == sets.end() ? "none" : joined(found->processors, ", "));
  }
  return text;
}

OnCores::OnCores(const std::vector<int>& processors) {
  if (processors.empty()) return;
  before_ = schedule::usable_processors();
  set_affinity(processors);
  ::setenv(kVariable, joined(processors, ",").c_str(), 1);
}

OnCores::~OnCores() {
  if (before_.empty()) return;
  set_affinity(before_);
  ::unsetenv(kVariable);
}

}  // namespace weft::cli::bench_internal
