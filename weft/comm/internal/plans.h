// Which schedule runs a collective over messages: the one that the user names, else the planner's
// (weft/plan).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/comm/backend.h"
#include "weft/net/memory/host.h"
#include "weft/plan/choice.h"
#include "weft/schedule/schedule.h"

namespace weft::comm::internal {

// What a group's planners know; the same on all ranks.
struct Plans {
  std::shared_ptr<const plan::CostTable> table;  // null: the built-in one
  std::optional<schedule::Algorithm> algorithm;  // the user's, for the collectives that it can do
  bool ordered_sums = false;                     // BackendOptions
};

// Whether BackendOptions::ordered_sums is about it.
constexpr bool is_ordered(schedule::Collective collective) {
  return collective == schedule::Collective::kAllReduce ||
         collective == schedule::Collective::kReduceScatter;
}

// Collective: rank 0's table for all, so that all choose the same. Throws kBadConfig for an
// algorithm that there is not or that needs shared memory, and where ranks' options differ. Ranks
// on several machines plan with the built-in costs unless WEFT_CALIBRATION names a table: what
// `weft bench calibrate` finds on one machine says nothing of their network.
Plans agree_on_plans(const BackendOptions& options, bool one_machine, const net::Exchange& exchange,
                     int rank);

// Plans for the ranks of a group, or one rank of each of its hosts. Any thread may call it.
class Chooser {
 public:
  Chooser(const Plans& plans, plan::Transport transport, int world);
  // The request with its algorithm and chunk.
  schedule::Request decide(schedule::Request request, std::size_t element) const;
  bool has_ordered_sums() const { return ordered_sums_; }

 private:
  const std::optional<schedule::Algorithm> algorithm_;
  const bool ordered_sums_;
  const plan::Planner planner_;
};

}  // namespace weft::comm::internal
