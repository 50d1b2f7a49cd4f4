// Chooses the schedule of a collective over messages: the user's algorithm, else the planner's
// (weft/plan/collectives).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/comm/backend.h"
#include "weft/net/memory/host.h"
#include "weft/plan/collectives/choice.h"
#include "weft/schedule/schedule.h"

namespace weft::comm::internal {

// Measured costs or the user choose the algorithms of a group. The same on all ranks.
struct Tuning {
  std::shared_ptr<const plan::CostTable> table;  // null: the built-in one
  std::optional<schedule::Algorithm> algorithm;  // the user's, for the collectives that it supports
  bool ordered_sums = false;                     // BackendOptions
};

// Whether BackendOptions::ordered_sums applies to it.
constexpr bool is_ordered(schedule::Collective collective) {
  return collective == schedule::Collective::kAllReduce ||
         collective == schedule::Collective::kReduceScatter;
}

// Collective: all ranks get rank 0's table, so that all choose the same. Throws kBadConfig for an
// unknown algorithm or one that needs shared memory, and if ranks' options differ. Ranks on several
// machines use the built-in costs unless WEFT_CALIBRATION names a table: a calibration on one
// machine (`weft bench calibrate`) does not measure the network between machines.
Tuning agree_on_tuning(const BackendOptions& options, bool one_machine,
                       const net::Exchange& exchange, int rank);

// Chooses for the ranks of a group, or one rank of each of its hosts. Any thread may call it.
class Chooser {
 public:
  Chooser(const Tuning& tuning, plan::Transport transport, int world);
  // Returns the request with its algorithm and chunk.
  schedule::Request decide(schedule::Request request, std::size_t element) const;
  bool has_ordered_sums() const { return ordered_sums_; }

 private:
  const std::optional<schedule::Algorithm> algorithm_;
  const bool ordered_sums_;
  const plan::Planner planner_;
};

}  // namespace weft::comm::internal
