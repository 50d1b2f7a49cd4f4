// How the supervisor changes the number of ranks by itself: a discovery script, and the throughput
// per rank (autoscale.h).
#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {

// Of those that the mesh can use.
int Supervisor::least_ranks() const {
  return std::max(1, situation_.usable.least(policy_.min_ranks));
}

// The job shall have so many ranks, or the most below it that the mesh can use. It may start new
// processes for it.
void Supervisor::want_ranks(int ranks, const std::string& why) {
  ranks = std::max(least_ranks(), situation_.usable.most(ranks));
  if (situation_.wanted != ranks || !situation_.requested) {
    note("the job shall have " + counted(ranks, "rank") + why);
    situation_.never_joined = 0;
  }
  situation_.wanted = ranks;
  situation_.requested = true;
}

void Supervisor::look_at_discovery() {
  const auto result = discovery_.look(std::chrono::steady_clock::now());
  if (!result) return;
  std::string wrong;
  if (result->timed_out || !result->status.ok()) {
    wrong = result->describe();
  } else {
    const Discovered found = slots_of(result->output, names_of_this_host());
    if (found.slots) offered_ = std::clamp(*found.slots, least_ranks(), policy_.max_ranks);
    if (!found.slots) wrong = "\"" + found.wrong.substr(0, 80) + "\" is not host:slots";
  }
  if (!wrong.empty() && !discovery_broken_)
    note("--discovery-script: " + wrong + "; the number of ranks stays, and this is said once");
  discovery_broken_ = !wrong.empty();
}

// `weft scale` and these change the same number: the latest one counts.
void Supervisor::autoscale() {
  look_at_discovery();
  if (!situation_.trained || situation_.stop_sent || !is_calm() || size_ == 0) return;
  const int most = offered_.value_or(policy_.max_ranks);
  if (options_.scaling.efficiency > 0) {
    const auto next = throughputs_.next({options_.scaling.efficiency, least_ranks(), most},
                                        std::chrono::steady_clock::now());
    if (next) want_ranks(*next, " (--scale-efficiency)");
  } else if (offered_ && *offered_ != applied_) {
    applied_ = *offered_;
    if (size_ != applied_) want_ranks(applied_, " (--discovery-script)");
  }
}

}  // namespace weft::launch::internal
