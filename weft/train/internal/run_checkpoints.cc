#include "weft/train/internal/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {
namespace {

namespace fs = std::filesystem;

// Time since the newest checkpoint in the folder was made; without one, since the run began. By the
// clock of the files, which may jump.
std::chrono::duration<double> age_of_newest(const fs::path& folder) {
  std::optional<fs::file_time_type> made;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!checkpoint::step_of(it->path().filename().string())) continue;
    std::error_code removed;
    const auto time = fs::last_write_time(it->path(), removed);
    if (!removed) made = std::max(made.value_or(time), time);
  }
  if (!made) made = fs::last_write_time(folder.parent_path() / "config.toml", error);
  return error ? fs::file_time_type::duration{} : fs::file_time_type::clock::now() - *made;
}

}  // namespace

void RunCheckpoints::start(std::string folder, std::int64_t step, bool is_saved, bool copies) {
  folder_ = std::move(folder);
  if (is_saved) saved_step_ = step;
  saved_at_ = std::chrono::steady_clock::now();
  if (copies) copying_.emplace(world_, options_.copy_steps);
}

// A clock that has jumped delays a checkpoint by one interval, or makes it due now.
void RunCheckpoints::keep_interval() {
  if (options_.checkpoint_minutes <= 0 || folder_.empty()) return;
  using Seconds = std::chrono::duration<double>;
  const Seconds age = std::clamp(age_of_newest(folder_), Seconds::zero(),
                                 Seconds(60 * options_.checkpoint_minutes));
  saved_at_ -= std::chrono::ceil<std::chrono::steady_clock::duration>(age);
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
  is_asked_for_ = by_time_ = false;
  saves_best_ = saves_best_ || best.step == progressed.step;
  if (!saver_) make_saver(learner, best);
  saver_->save(shards_of(learner.parts(false), progressed), best);
}

void RunCheckpoints::poll() {
  if (saver_) saver_->poll();
}

void RunCheckpoints::settle() {
  saves_best_ = false;
  if (saver_) saver_->settle();
}

void RunCheckpoints::finish(bool ends) {
  if (saver_) saver_->finish(ends);
}

void RunCheckpoints::add_step(double seconds) {
  if (copying_) copying_->add_step(seconds);
}

// A recovery from a copy does not save the best step of the copy again. So its checkpoint is
// complete before. The same on all ranks.
void RunCheckpoints::copy(Learner& learner, const Progressed& progressed) {
  if (saves_best_) settle();
  learner.model().wait_for_weights();
  copying_->take(shards_of(learner.parts(true), progressed));
}

}  // namespace weft::train::internal
