// go_on() repeats until all have entered a group that the program can use:
//
//   stop and leave the old group ─► regroup() ─► park() ─► enter()
//        ▲                                         │          │ a rank is lost, or does not fit
//        └───── the mesh fits fewer ranks ─────────┴──────────┘
//
// A loss in park() or enter() begins the next round with the group that exists then. Only a failure
// of regroup() itself ends the recovery, which tries several epochs by itself.
//
// park(): ranks that the mesh cannot use leave, the highest first. Before, they hand over the parts
// of the state that only they can read, and all meet at a barrier, so that none leaves in between.
// `brought` lives through all rounds, since parts that were handed over in one round are needed in
// the next.
//
// Copies are freed in two steps, since a rank may end a collective in which another one fails, and
// ranks of a host read each other's copies in place:
//
//   enter() ─► longest() ─► barrier() ─► free the copies of former groups
//               │            │ no rank reads former copies any more
//               │ all ranks have copies in this group: bring no others into a further round
//
// A rank that fails before longest() has ended brings the copies of both groups: some ranks may
// bring only the new ones. A rank that leaves, or gives up, keeps its copies until it ends.
//
// A rank that was about to leave when another one was lost is a member again (has_left_ = false).
//
// One thread of the program runs this.
#include "weft/elastic/recovery.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"
#include "weft/observe/position/position.h"
#include "weft/rank_link/messages.h"
#include "weft/rank_link/notices.h"

namespace weft::elastic {
namespace {

using Clock = std::chrono::steady_clock;

// Limits of the wait for a replacement, and of a recovery with all its attempts.
constexpr auto kJoinLimit = std::chrono::seconds(30);
constexpr auto kRecoveryLimit = std::chrono::minutes(5);

// A number that the launcher has set; 0 without one.
int from_launcher(const char* name) { return number_variable(name).value_or(0); }

// True if ranks have found that they are different programs.
bool is_difference(const Error& error) {
  return (error.code() == Errc::kInvalidArgument || error.code() == Errc::kBadConfig) &&
         error.context().peer >= 0;
}

// The longest time of all ranks: a newcomer knows only how long it has been there itself.
double longest(const Group& world, double seconds) {
  at::Tensor most = at::scalar_tensor(seconds, at::kDouble);
  world.all_reduce(most, ReduceOp::kMax);
  return most.item<double>();
}

// The copies of the state that this rank holds during a recovery.
class HeldCopies {
 public:
  HeldCopies() = default;
  HeldCopies(const HeldCopies&) = delete;
  HeldCopies& operator=(const HeldCopies&) = delete;
  // Other ranks may still read them.
  ~HeldCopies() {
    for (const auto* some : {&former_, &brought.copies}) {
      for (const auto& copies : *some) keep_until_exit(copies);
    }
  }

  void add(std::shared_ptr<const StateCopies> copies) {
    if (copies != nullptr) brought.copies.push_back(std::move(copies));
  }
  // All ranks have newer ones: this rank brings these into no other group.
  void replace() {
    former_.insert(former_.end(), brought.copies.begin(), brought.copies.end());
    brought = {};
  }
  // No rank reads the replaced ones any more.
  void free_replaced() { former_.clear(); }

  Brought brought;

 private:
  std::vector<std::shared_ptr<const StateCopies>> former_;
};

}  // namespace

bool is_loss(const Error& error) {
  return error.code() == Errc::kPeerLost || error.code() == Errc::kAborted ||
         (error.code() == Errc::kTimeout && error.context().peer >= 0);
}

Recovery::Recovery(Group world, const rank_link::UsableRanks& usable)
    : world_(std::move(world)),
      usable_(usable),
      min_ranks_(from_launcher("WEFT_MIN_RANKS")),
      join_timeout_(from_launcher("WEFT_JOIN_TIMEOUT")),
      is_on_(from_launcher("WEFT_ELASTIC") > 0) {
  // By every rank: one that leaves must have told it before, or the launcher would replace it.
  if (usable_ != rank_link::UsableRanks{}) rank_link::tell_launcher(rank_link::Usable{usable_});
}

bool Recovery::has_newcomers() const {
  const auto& former = world_.former_ranks();
  return std::find(former.begin(), former.end(), -1) != former.end();
}

bool Recovery::is_newcomer() const {
  const auto& former = world_.former_ranks();
  return !former.empty() && former[static_cast<std::size_t>(world_.rank())] < 0;
}

// The group with the replacements of lost ranks, or without the lost ranks.
comm::RegroupOptions Recovery::same_size() const {
  return {.size = world_.size(),
          .keep_ranks = true,
          .at_least = min_ranks_ > 0 ? min_ranks_ : world_.size(),
          .wait = kJoinLimit,
          .timeout = kRecoveryLimit};
}

void Recovery::recover(const Steps& steps, const Error* why) {
  if (why == nullptr) return go_on(steps, nullptr);
  log_warn("a rank is lost: " + why->message() + "; the others form the group again");
  const comm::RegroupOptions regroup = same_size();
  go_on(steps, &regroup);
}

void Recovery::resize(const Steps& steps, int ranks, const std::vector<int>& newcomers) {
  log_info("the number of ranks changes", {{"from", world_.size()}, {"to", ranks}});
  const comm::RegroupOptions regroup = smaller(ranks, newcomers);
  go_on(steps, &regroup);
}

// The group of another size, without the ranks from there on.
comm::RegroupOptions Recovery::smaller(int ranks, const std::vector<int>& newcomers) const {
  const int stay = std::min(ranks, world_.size());
  return {.size = ranks,
          .keep_ranks = true,
          .leaving_from = stay,
          .newcomers = newcomers,
          .at_least = min_ranks_ > 0 ? min_ranks_ : stay,
          .wait = kJoinLimit,
          .timeout = kRecoveryLimit};
}

// Of ranks that the program cannot all use, the highest ones leave. Returns nothing if none does,
// or if this one did.
std::optional<comm::RegroupOptions> Recovery::park(Brought& brought) {
  const int ranks = world_.size(), stay = usable_.most(ranks);
  if (stay == ranks) return std::nullopt;
  if (stay < std::max(1, min_ranks_)) {
    throw Error(Errc::kUnavailable,
                std::to_string(ranks) + (ranks == 1 ? " rank is" : " ranks are") +
                    " left, of which the mesh can use " + std::to_string(stay) +
                    "; resume the run from its newest checkpoint with more ranks");
  }
  if (world_.rank() == 0)
    log_warn("the mesh fits fewer ranks than are left: the others leave",
             {{"left", ranks}, {"fit", stay}});
  hand_over(world_, stay, brought);
  has_left_ = world_.rank() >= stay;
  try {
    world_.barrier();
  } catch (const Error& error) {
    // A rank that stays has gone on already, or is lost. A rank that leaves is needed no more.
    if (!has_left_ || !is_loss(error)) throw;
  }
  if (has_left_) leave_job();
  return smaller(stay, {});
}

void Recovery::leave_job() const {
  failpoint("leave.begin");
  rank_link::tell_launcher(rank_link::Leaving{});
  failpoint("leave.told");
  log_info("this rank leaves the job", {{"rank", world_.rank()}});
}

// `regroup`: null for a newcomer, whose group is formed.
void Recovery::go_on(const Steps& steps, const comm::RegroupOptions* regroup) {
  // The limit counts from the first loss, over all rounds.
  const auto start = Clock::now();
  const observe::ActivityScope activity(observe::Activity::kRecovery);
  std::optional<comm::RegroupOptions> next;
  if (regroup != nullptr) next = *regroup;
  HeldCopies held;
  std::int64_t step = 0;
  double took_s = 0;
  for (;;) {
    if (next) {
      failpoint("recovery.begin");
      held.add(steps.copies());
      world_.stop();
      steps.leave();
      failpoint("recovery.left");
      world_ = world_.regroup(*next);
      set_rank(world_.rank(), world_.size());  // rank 0 may be another process now
    }
    failpoint("recovery.regrouped");
    try {
      next = park(held.brought);
      if (has_left_) return;
      if (next) continue;
      step = steps.enter(held.brought);
      failpoint("recovery.restored");
      took_s = longest(world_, seconds_since(start));
      held.replace();
      world_.barrier();
      held.free_replaced();
      break;
    } catch (const Error& error) {
      const bool differs = is_difference(error) && has_newcomers();
      if (differs && is_newcomer()) {
        rank_link::tell_launcher(rank_link::Refused{});
        throw Error(Errc::kBadConfig,
                    "this process does not fit the running job: " + error.message(),
                    error.context());
      }
      has_left_ = false;
      if ((!differs && !is_loss(error)) || Clock::now() - start > kRecoveryLimit) throw;
      next = same_size();
    }
  }
  log_info(
      "training goes on",
      {{"step", step}, {"ranks", world_.size()}, {"recovery_s", std::round(took_s * 1e3) / 1e3}});
}

int SizeRequests::ranks() {
  std::tie(ranks_, newcomers_) = rank_link::notices().wanted();
  return ranks_;
}

}  // namespace weft::elastic
