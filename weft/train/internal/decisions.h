// What the program and the evaluations decide during training: callbacks, the best checkpoint, and
// an end before the last epoch.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/observe/run/event_file.h"
#include "weft/train/internal/best.h"
#include "weft/train/options.h"

namespace weft::train::internal {

// Calls the callbacks of a rank, and keeps what they ask for until the ranks agree.
class Callbacks {
 public:
  // A rank may lack callbacks that others have. Collective.
  Callbacks(const Options& options, const Group& world);

  void step_done(const StepReport& step);
  // Returns true if the ranks should agree() now. The same on all ranks.
  bool epoch_done(const EpochReport& epoch);

  struct Requests {
    bool stop = false, save = false;
  };
  // Of this rank, since the last call.
  Requests take_requests();
  bool has_requests() const { return control_.stop_ || control_.save_; }
  // Of any rank. Collective.
  Requests agree(const Group& world);
  // As agree(), and all ranks keep the requests for the next call of agree() or take_requests().
  // Does nothing if no rank has a callback of steps. Collective.
  Requests share(const Group& world);
  // Adds requests to those of this rank.
  void add_requests(const Requests& requests);
  // Values that were logged since the last call.
  observe::Values take_logged();

 private:
  const decltype(Options::on_step) on_step_;
  const decltype(Options::on_epoch_end) on_epoch_end_;
  bool any_on_step_ = false, any_on_epoch_end_ = false;  // on any rank
  Control control_;
};

class Decisions {
 public:
  // Collective.
  Decisions(const Options& options, const Group& world);

  Callbacks& callbacks() { return callbacks_; }
  // A callback of some rank has asked for the end, or reason() says why. The same on all ranks.
  // Returns true at the first call.
  bool end() {
    ends_ = true;
    return !std::exchange(told_, true);
  }
  void evaluated(const Evaluation& evaluation, std::int64_t step);
  // True if training ends before its last epoch. The same on all ranks.
  bool ends() const { return ends_; }
  // Why evaluations have ended training; empty if they have not.
  const std::string& reason() const { return reason_; }
  // True if the weights of now are the best and have no checkpoint yet.
  bool save_is_due() const { return save_is_due_; }
  void saved() { save_is_due_ = false; }

  BestMark best() const { return best_ ? best_->mark() : BestMark{}; }
  // That of the best checkpoint, which the options may not ask for: without keep_best, the best
  // evaluation may have none.
  BestMark kept_best() const { return keeps_best_ ? best() : BestMark{}; }
  Best::State state() const { return best_ ? best_->state() : Best::State{}; }
  // Of a resumed run.
  void restore(const Best::State& state);

 private:
  void watch_patience();

  Callbacks callbacks_;
  const bool keeps_best_;
  std::optional<Best> best_;
  bool ends_ = false, save_is_due_ = false;
  bool told_ = false;  // end() was called
  std::string reason_;
};

}  // namespace weft::train::internal
