// Watches the ranks of a node for hangs, and does what the options say about them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <vector>

#include "weft/launch/hang_watch.h"
#include "weft/launch/internal/node.h"

namespace weft::launch::internal {

class HangGuard {
 public:
  explicit HangGuard(Node& node) : node_(node) {}

  // Looks at the positions of the ranks, at most every HangWatch::kPeriod. Ranks that hang, or that
  // ask to be replaced because they are slow, are killed if the policy says so.
  void look();

 private:
  void replace_slow_rank();
  void report(std::vector<Hang> hangs, std::vector<observe::RankView>& views, Nanos clock);

  Node& node_;
  HangWatch watch_;
  Time looked_{};
  std::set<pid_t> killed_;         // ranks that it has killed because they hung
  std::optional<Process> writer_;  // writes the files of the last hang
};

}  // namespace weft::launch::internal
