// Watches the ranks of a node for hangs, and does what the options say about them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/hang_watch.h"
#include "weft/launch/internal/node.h"

namespace weft::launch::internal {

// Writes files in a process of its own: the file system may be what hangs.
class HangWriter {
 public:
  // Starts a process that runs `write`. Returns why there is none; empty: it runs. One that still
  // runs is left alone: to end it, if its file system hangs, would take the launcher's time.
  std::string start(std::function<void()> write);

 private:
  std::optional<Process> running_;
};

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
  HangWriter writer_;
};

}  // namespace weft::launch::internal
