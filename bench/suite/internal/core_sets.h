// The cores on which the ranks of a bench run. Ranks on near cores share a cache. Ranks on far
// cores do not, so every cache line between them takes longer.
#pragma once

#include <string>
#include <vector>

#include "weft/schedule/machine.h"

namespace weft::cli::bench_internal {

struct CoreSet {
  std::string name;             // "near" or "far"
  std::vector<int> processors;  // ascending; one for each rank
};

// The sets that the machine has for `ranks` ranks, from the processors in `usable`. A core counts
// once, also if it has several processors. Far cores are spread evenly over the last-level caches.
std::vector<CoreSet> core_sets(const schedule::Machine& machine, const std::vector<int>& usable,
                               int ranks);

// "near cores: 0, 1; far cores: none".
std::string describe(const std::vector<CoreSet>& sets);

// While it lives, this process uses only these processors, and so do the processes that it starts.
// Peers bind their ranks to them in this order (WEFT_BENCH_CORES). An empty list changes nothing.
class OnCores {
 public:
  explicit OnCores(const std::vector<int>& processors);
  ~OnCores();
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;

 private:
  std::vector<int> before_;
};

}  // namespace weft::cli::bench_internal
