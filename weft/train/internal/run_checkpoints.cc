#include "weft/train/internal/run_checkpoints.h"

#include <utility>

#include "weft/base/deadline.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {

void RunCheckpoints::start(std::string folder, std::int64_t step, bool is_saved, bool copies) {
  folder_ = std::move(folder);
  if (is_saved) saved_step_ = step;
  saved_at_ = std::chrono::steady_clock::now();
  if (copies) copying_.emplace(world_, options_.copy_steps);
}

// Where the options ask for no checkpoints, it takes no memory for copies.
void RunCheckpoints::make_saver(Learner& learner, const BestMark& best) {
  // The loss of the newest checkpoint's weights may not have been checked yet, so the previous
  // checkpoint is kept too.
  const int keep = options_.keep == 1 ? 2 : static_cast<int>(options_.keep);
  saver_.emplace(
      world_, learner.parts(false),
      RunSaver::Options{folder_, keep, options_.checkpoint_async && are_on(), best, damaged_});
}

bool RunCheckpoints::minutes_due() const {
  return options_.checkpoint_minutes > 0 &&
         seconds_since(saved_at_) >= 60 * options_.checkpoint_minutes;
}

void RunCheckpoints::save(Learner& learner, const Progressed& progressed, const BestMark& best) {
  const observe::ActivityScope activity(observe::Activity::kCheckpoint);
  saved_step_ = progressed.step;
  saved_at_ = std::chrono::steady_clock::now();
  is_requested_ = false;
  if (!saver_) make_saver(learner, best);
  saver_->save(shards_of(learner.parts(false), progressed), best);
}

void RunCheckpoints::poll() {
  if (saver_) saver_->poll();
}

void RunCheckpoints::settle() {
  if (saver_) saver_->settle();
}

void RunCheckpoints::finish(bool ends) {
  if (saver_) saver_->finish(ends);
}

void RunCheckpoints::add_step(double seconds) {
  if (copying_) copying_->add_step(seconds);
}

void RunCheckpoints::copy(Learner& learner, const Progressed& progressed) {
  learner.model().wait_for_weights();
  copying_->take(shards_of(learner.parts(true), progressed));
}

}  // namespace weft::train::internal
