// When checkpoints and copies of the state in memory are due, and who makes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/elastic/copying.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class RunCheckpoints {
 public:
  // `options` must outlive it.
  RunCheckpoints(const Options& options, Group world)
      : options_(options), world_(std::move(world)) {}

  // Training begins after `step`. `is_saved`: the newest checkpoint has this step. `folder`: of the
  // checkpoints; used on rank 0 only. `copies`: copy the state to memory. Collective.
  void start(std::string folder, std::int64_t step, bool is_saved, bool copies);
  // Steps of damaged checkpoints, which do not count towards those to keep. Call it before the
  // first save and before make_saver().
  void set_damaged(std::vector<std::int64_t> steps) { damaged_ = std::move(steps); }
  // After start(), if ranks were lost or their number has changed: the checkpoint_minutes since the
  // newest checkpoint, or the start of the run, count.
  void keep_interval();
  // Allocates the memory that checkpoints need. Without it, the first save does so. Collective.
  void make_saver(Learner& learner, const BestMark& best);

  // True if the options ask for checkpoints. Otherwise requests alone save one.
  bool are_on() const { return saves_checkpoints(options_); }
  bool steps_due(std::int64_t step) const {
    return options_.checkpoint_steps > 0 && step % options_.checkpoint_steps == 0;
  }
  bool minutes_due() const;
  // Whether a callback has asked for a checkpoint, and whether checkpoint_minutes have passed. The
  // same on all ranks.
  void request(bool is_asked_for, bool by_time) {
    is_asked_for_ = is_asked_for;
    by_time_ = by_time;
  }
  // A callback has asked for a checkpoint. The same on all ranks.
  void ask() { is_asked_for_ = true; }
  bool is_asked_for() const { return is_asked_for_; }
  bool is_due(std::int64_t step) const { return steps_due(step) || is_asked_for_ || by_time_; }
  bool has(std::int64_t step) const { return saved_step_ == step; }
  // Saves a checkpoint. Collective.
  void save(Learner& learner, const Progressed& progressed, const BestMark& best);
  // See RunSaver. Without a saver, they do nothing.
  void poll();
  void settle();
  void finish(bool ends = true);

  // Whether the state is to be copied to memory now, and at all.
  bool copy_is_due(std::int64_t step) const { return copying_ && copying_->is_due(step); }
  bool copies_on() const { return copying_.has_value(); }
  void add_step(double seconds);
  // Copies this rank's part of the state, after the best checkpoint so far is complete. Collective.
  void copy(Learner& learner, const Progressed& progressed);
  // They outlive the run. Null without them.
  std::shared_ptr<const elastic::StateCopies> copies() const {
    return copying_ ? copying_->copies() : nullptr;
  }

 private:
  const Options& options_;
  const Group world_;
  std::string folder_;
  std::vector<std::int64_t> damaged_;
  std::optional<RunSaver> saver_;
  std::optional<elastic::Copying> copying_;
  std::int64_t saved_step_ = -1;
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  bool is_asked_for_ = false, by_time_ = false;  // see request()
  bool saves_best_ = false;  // A save since the last settle() is of the best step.
};

}  // namespace weft::train::internal
