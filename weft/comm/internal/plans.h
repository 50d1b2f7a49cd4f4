// Which schedule runs a collective over messages: the one that the user names, else the planner's (weft/plan).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/net/host.h"
#include "weft/plan/choice.h"
#include "weft/schedule/schedule.h"

namespace weft::comm::internal {

// What a group's planners know; the same on all ranks.
struct Plans {
  std::shared_ptr<const plan::CostTable> table;  // null: the built-in one
  std::optional<schedule::Algorithm> algorithm;  // the user's, for the collectives that it can do
};

// Collective: rank 0's table for all, so that all choose the same. `algorithm` is the user's, as BackendOptions has it; throws
// kBadConfig for one that there is not or that needs shared memory, and where ranks name different ones. Ranks on several machines plan
// with the built-in costs unless WEFT_CALIBRATION names a table: what `weft bench calibrate` finds on one machine says nothing of their
// network.
Plans agree_on_plans(const std::string& algorithm, bool one_machine, const net::Exchange& exchange, int rank);

// Plans for the ranks of a group, or one rank of each of its hosts. Any thread may call it.
class Chooser {
 public:
  Chooser(const Plans& plans, plan::Transport transport, int world);
  // The request with its algorithm and chunk.
  schedule::Request decide(schedule::Request request, std::size_t element) const;

 private:
  const std::optional<schedule::Algorithm> algorithm_;
  const plan::Planner planner_;
};

}  // namespace weft::comm::internal
