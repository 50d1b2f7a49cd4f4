// Changes the number of ranks by itself: by a discovery script, and by the throughput per rank
// (autoscale.h). `weft scale` changes the same number: the latest request counts.
#pragma once

#include <poll.h>

#include <optional>
#include <vector>

#include "weft/launch/internal/autoscale.h"
#include "weft/launch/internal/node.h"
#include "weft/launch/internal/polled_command.h"

namespace weft::launch::internal {

class Autoscaler {
 public:
  explicit Autoscaler(Node& node);

  void watch(std::vector<pollfd>& watched) const { discovery_.watch(watched); }
  // When look() has to be called next, besides events.
  std::optional<Time> next() const { return discovery_.next(); }
  // `is_calm`: the job trains, and no rank joins or ends.
  void look(bool is_calm);
  // Adds a measured throughput of all ranks.
  void add_throughput(double samples_per_s);

 private:
  void look_at_discovery();

  Node& node_;
  PolledCommand discovery_;
  bool is_broken_ = false;      // the discovery script
  std::optional<int> offered_;  // ranks that this host has slots for, within the job's limits
  int applied_ = 0;             // the last of them that the job was told
  Throughputs throughputs_;
};

}  // namespace weft::launch::internal
