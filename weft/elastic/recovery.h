// Recovery: what a program does when a rank is lost, whatever it trains.
//
//   elastic::Recovery recovery(weft::init());
//   if (recovery.is_newcomer()) recovery.recover(steps);
//   for (;;) {
//     try {
//       return train(recovery.world());
//     } catch (const Error& error) {
//       if (!recovery.answers(error)) throw;
//       recovery.recover(steps, &error);
//     }
//   }
//
//   rank lost ──> leave() ──> the group forms again ──> enter(): objects, state ──> next step
//                    ▲                 │                   │
//                    │                 │ hand_over(): ranks too many for the mesh leave
//                    └── another rank is lost, or leaves ──┘
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/group.h"
#include "weft/elastic/newest_state.h"
#include "weft/rank_link/usable_ranks.h"

namespace weft::elastic {

// True if this rank ended with the error because another rank is lost. A pure function.
bool is_loss(const Error& error);

// The number of ranks that the launcher asks for: `weft scale`, or ranks that can be added again.
// One thread uses it.
class SizeRequests {
 public:
  // The latest number of ranks that the launcher asked for; 0: none.
  int ranks();
  // Ranks by the launcher that wait to be added. This rank may not know them yet.
  const std::vector<int>& newcomers() const { return newcomers_; }

 private:
  int ranks_ = 0;
  std::vector<int> newcomers_;
};

// One thread uses it.
class Recovery {
 public:
  // What the program does around a new group.
  struct Steps {
    // Returns this rank's newest copies of the state; null if it has none, as in a newcomer.
    std::function<std::shared_ptr<const StateCopies>()> copies;
    // Drops all that belongs to the old group. It has failed: nothing communicates.
    std::function<void()> leave;
    // Makes everything in world() again, with the newest state (use_newest_state()), and returns
    // the number of optimizer steps in it. Collective.
    std::function<std::int64_t(const Brought& brought)> enter;
  };

  // `world`: the group of weft::init(). The launcher's flags say which losses are answered
  // (weft run --max-replacements, --min-ranks). `usable`: numbers of ranks that the program can
  // use. Of other numbers, the highest ranks leave the job.
  explicit Recovery(Group world, const rank_link::UsableRanks& usable = {});

  // The ranks that train: after recover(), another group.
  const Group& world() const { return world_; }
  // True if the launcher replaces lost ranks, or lets the others go on without them.
  bool is_on() const { return is_on_; }
  // True if the job may also go on with fewer ranks, and grow again.
  bool may_resize() const { return is_on_ && min_ranks_ > 0; }
  // True if this process has come into the running job in place of a lost rank.
  bool is_newcomer() const;
  // True after recover() or resize() on a rank that the others cannot use: it ends its program.
  bool has_left() const { return has_left_; }
  // True if recover() is the answer to this error.
  bool answers(const Error& error) const { return is_on_ && is_loss(error); }

  // Gives the job's first group a number of ranks that the mesh can use, where that number may
  // change (--min-ranks, -n MIN:MAX, --nnodes MIN:MAX). If there are enough ranks, the highest ones
  // leave the job, and the others form the group again. If there are too few, all wait until the
  // launcher has added some, at most as long as nodes wait for each other (join_timeout). Returns
  // false if there is nothing to do: then the caller enters the group itself. `should_stop`: ends
  // the wait with kUnavailable; may be null. Throws kTimeout at the end of the wait, and as
  // recover(). All ranks of the group call it, before anything else.
  bool fit(const Steps& steps, const std::function<bool()>& should_stop);

  // Forms the group again and enters it. If a rank is lost meanwhile, repeats both at once. `why`:
  // the error that ended training. A newcomer has none, since its group is formed. Throws what
  // enter() throws, and as Group::regroup(): kAborted if the others have gone on without this rank.
  // If enter() finds that ranks differ (their models, say), a newcomer throws kBadConfig with the
  // difference, and the others form the group again without it.
  void recover(const Steps& steps, const Error* why = nullptr);

  // Forms the group again with `ranks` ranks, which the launcher asked for. All ranks that stay
  // call it after the same step, with copies of the state of that step; the ranks from `ranks` on
  // call leave_job(). `newcomers`: ranks by the launcher that wait to be added; not all ranks need
  // to know them. If they are lost, the others go on without them. Else as recover().
  void resize(const Steps& steps, int ranks, const std::vector<int>& newcomers);
  // Tells the launcher that this rank ends, since the job shrinks. The others may still read this
  // rank's copies of the state: do not free them before the process ends.
  void leave_job() const;

 private:
  bool has_newcomers() const;
  comm::RegroupOptions same_size() const;
  comm::RegroupOptions smaller(int ranks, const std::vector<int>& newcomers) const;
  int ranks_when_enough(int least, const std::function<bool()>& should_stop,
                        SizeRequests& requests) const;
  std::optional<comm::RegroupOptions> park(Brought& brought);
  void go_on(const Steps& steps, const comm::RegroupOptions* regroup);

  Group world_;
  const rank_link::UsableRanks usable_;
  const int min_ranks_;                      // 0: all ranks
  const std::chrono::seconds join_timeout_;  // How long nodes wait for each other.
  const bool is_on_;
  bool has_left_ = false;
};

}  // namespace weft::elastic
