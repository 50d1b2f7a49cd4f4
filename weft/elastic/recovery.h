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

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/group.h"

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
    // Drops all that belongs to the old group. It has failed: nothing communicates.
    std::function<void()> leave;
    // Gives copies of the state that only ranks from `staying` on can read to the others, which go
    // on alone (hand_over()). Collective.
    std::function<void(int staying)> hand_over;
    // Makes everything in world() again, with the newest state, and returns the number of optimizer
    // steps in it. Collective.
    std::function<std::int64_t()> enter;
  };

  // `world`: the group of weft::init(). The launcher's flags say which losses are answered
  // (weft run --max-replacements, --min-ranks). `multiple`: the program can use only multiples of
  // so many ranks, such as those of a pipeline. Of other numbers, the highest ranks leave the job.
  explicit Recovery(Group world, int multiple = 1);

  // The ranks that train: after recover(), another group.
  const Group& world() const { return world_; }
  // True if the launcher replaces lost ranks, or lets the others go on without them.
  bool is_on() const { return is_on_; }
  // True if this process has come into the running job in place of a lost rank.
  bool is_newcomer() const;
  // True after recover() or resize() on a rank that the others cannot use: it ends its program.
  bool has_left() const { return has_left_; }
  // True if recover() is the answer to this error.
  bool answers(const Error& error) const { return is_on_ && is_loss(error); }

  // Forms the group again and enters it. If a rank is lost meanwhile, repeats both. `why`: the
  // error that ended training. A newcomer has none, since its group is formed. Throws what enter()
  // throws, and as Group::regroup(): kAborted if the others have gone on without this rank. If
  // enter() finds that ranks differ (their models, say), a newcomer throws kBadConfig with the
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
  std::optional<comm::RegroupOptions> park(const Steps& steps);
  void go_on(const Steps& steps, const comm::RegroupOptions* regroup);

  Group world_;
  const int multiple_;
  const int min_ranks_;  // 0: all ranks
  const bool is_on_;
  bool has_left_ = false;
};

}  // namespace weft::elastic
