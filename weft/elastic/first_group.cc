// The first group of a job whose mesh needs another number of ranks.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/elastic/recovery.h"

namespace weft::elastic {
namespace {

// Ranks that wait look so often for notices of the launcher.
constexpr auto kLook = std::chrono::milliseconds(50);

}  // namespace

bool Recovery::fit(const Steps& steps, const std::function<bool()>& should_stop) {
  const int ranks = world_.size(), stay = usable_.most(ranks);
  if (min_ranks_ == 0 || !is_on_ || is_newcomer() || stay == ranks) return false;
  const int least = usable_.least(min_ranks_);
  if (least == 0) return false;  // the mesh says what is wrong
  if (stay < least) {
    if (join_timeout_.count() == 0) return false;  // nobody comes: the mesh says what is wrong
    SizeRequests requests;
    const int enough = ranks_when_enough(least, should_stop, requests);
    resize(steps, enough, requests.newcomers());
    return true;
  }
  if (world_.rank() == 0)
    log_warn("the mesh fits fewer ranks than there are: the others leave until it fits more",
             {{"ranks", ranks}, {"fit", stay}});
  has_left_ = world_.rank() >= stay;
  if (has_left_) {
    leave_job();
  } else {
    resize(steps, stay, {});
  }
  return true;
}

// Waits for the launcher's word that so many ranks are there. Collective.
int Recovery::ranks_when_enough(int least, const std::function<bool()>& should_stop,
                                SizeRequests& requests) const {
  if (world_.rank() == 0)
    log_warn("the mesh needs more ranks than there are: waiting for them",
             {{"ranks", world_.size()}, {"needed", least}, {"timeout_s", join_timeout_.count()}});
  const Deadline deadline = Deadline::in(join_timeout_);
  for (;;) {
    const bool is_first = world_.rank() == 0;
    const int wanted = requests.ranks();
    at::Tensor seen = at::tensor(
        {is_first ? static_cast<double>(wanted) : 0.0, is_first && deadline.passed() ? 1.0 : 0.0,
         should_stop && should_stop() ? 1.0 : 0.0},
        at::kDouble);
    world_.all_reduce(seen, ReduceOp::kMax);
    const int told = static_cast<int>(seen[0].item<double>());
    if (told >= least && told != world_.size()) return told;
    if (seen[2].item<double>() > 0)
      throw Error(Errc::kUnavailable,
                  "a rank was told to stop while the job waited for more ranks");
    if (seen[1].item<double>() > 0) {
      throw Error(Errc::kTimeout, std::to_string(world_.size()) + " of at least " +
                                      counted(least, "rank") +
                                      ", which the mesh needs, came within " +
                                      std::to_string(join_timeout_.count()) +
                                      " s; start more nodes, or raise join_timeout (--rdzv-conf)");
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace weft::elastic
