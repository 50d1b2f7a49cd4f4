// How the loop opens the run folder and continues from a checkpoint or from copies in memory.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <torch/version.h>

#include "weft/agent/link.h"
#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/file.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/texts.h"
#include "weft/launch/live_page.h"
#include "weft/observe/position/position.h"
#include "weft/observe/report/environment.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/newest_run.h"

namespace weft::train::internal {
namespace {

// Keys whose values differ from those in the run's config.toml: "0.1, was 0.2".
std::vector<LogField> changes_of(const std::string& file, const Config& now) {
  std::vector<LogField> changes;
  if (!std::filesystem::exists(file)) return changes;
  const auto rows = now.describe(), before = Config::load(file, now.schema()).describe();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].value == before[i].value || rows[i].key.rfind("run.", 0) == 0) continue;
    changes.emplace_back(rows[i].key, rows[i].value + ", was " + before[i].value);
  }
  return changes;
}

}  // namespace

void Loop::open(std::optional<Saved> state) {
  progress_.emplace(observe::Progress::Options{.mode = options_.progress, .rank = world_.rank()});
  comm::together(world_, [&] {
    if (world_.rank() == 0) open_folder(state.has_value());
  });
  if (!options_.resume) return;
  recovers_ = state.has_value();
  resumed_ = std::move(state);
  if (!resumed_) resumed_ = load_latest(world_, folder_ ? folder_->checkpoint_path() : "");
  if (!resumed_) log_warn("the run has no checkpoint yet: starting from the beginning");
}

// Makes the run folder, or opens that of a resumed run. Rank 0 only.
void Loop::open_folder(bool has_state) {
  observe::RunFolderOptions run{options_.dir, options_.name, options_.program, options_.resume};
  if (run.resume && run.name.empty()) {
    const auto newest = newest_run(run.parent, options_.program);
    WEFT_REQUIRE(newest.has_value(), "there is no run of " + options_.program + " to resume in " +
                                         run.parent + "; give the run's name");
    run.name = *newest;
  }
  const auto changes = run.resume
                           ? changes_of(run.parent + "/" + run.name + "/config.toml", config_)
                           : std::vector<LogField>{};
  folder_ = std::make_unique<observe::RunFolder>(run, config_);
  // If this rank is lost before training begins, its successor uses the same folder.
  agent::tell_launcher("folder", std::filesystem::absolute(folder_->path()).string());
  if (!changes.empty()) log_info("the run resumes with changed values", changes);
  if (!has_state) write_environment();
  tracing_.write_to(folder_->path() + "/trace.json");
}

// True if the batch of the checkpoint depends on the numbers of ranks that the run has had.
// Checkpoints of older versions do not say enough.
bool Loop::resizes() const {
  return !resumed_->asked_batch().empty() &&
         (options_.on_resize == "scale" || options_.batch_per_rank > 0);
}

Options Loop::learner_options(int replicas) const {
  if (!resumed_ || recovers_ || !resizes()) return options_;
  const std::string then = resumed_->asked_batch(), now = asked_batch(config_);
  WEFT_REQUIRE(then == now, "cannot resume: the run began with " + then + ", and now has " + now +
                                "; leave it as it was: the run goes on with the batch that its "
                                "number of ranks has given it");
  Options with = resized(options_, resumed_->batch(), replicas);
  if (options_.reference_batch > 0) {
    with.reference_batch = options_.reference_batch;
  } else if (with.reference_batch == with.batch) {
    with.reference_batch = 0;  // as in a run that was not resized, to the last bit
  }
  return with;
}

void Loop::write_environment() const {
  const auto weft = std::string(WEFT_VERSION), torch = std::string(TORCH_VERSION);
  const std::string text = observe::environment_json(
      {{"ranks", std::to_string(world_.size())}, {"weft", weft}, {"libtorch", torch}});
  try {
    write_file_atomic(folder_->path() + "/environment.json", text);
  } catch (const Error& error) {  // such as a full disk, when all ranks start again
    if (!options_.resume) throw;
    log_warn(error.message() + "; the file describes the environment before");
  }
}

void Loop::start(Learner& learner, EpochFields fields, Throughput throughput) {
  learner_ = &learner;
  throughput_ = throughput;
  fields_ = std::move(fields);
  const Batches& batches = learner.batches();
  rate_ = options_.schedule;
  epoch_steps_ = batches.per_epoch;
  rate_.base = batches.base_rate;
  if (rate_.period <= 0)
    rate_.period = static_cast<double>(std::max<std::int64_t>(1, options_.epochs));
  Best::check(options_, learner.metrics(), learner.has_test_data());
  decisions_.emplace(options_, world_);
  if (resumed_) restore();
  comm::together(world_, [&] {
    if (!folder_) return;
    folder_->keep();
    tell_launcher();
    // The copies in memory may be older than the newest checkpoint. If all ranks are lost later,
    // the run resumes from that checkpoint and needs the metrics of the steps before it.
    const std::int64_t known = recovers_ ? checkpoint::newest_step(folder_->checkpoint_path()) : -1;
    metrics_ = std::make_unique<observe::Metrics>(folder_->path(), step_ + 1, known);
  });
  log_.emplace(world_, metrics_.get(),
               StepLog::Flops{learner.flops_per_sample(),
                              options_.peak_tflops * 1e12 * static_cast<double>(world_.size())});
  log_->restore_noise(resumed_noise_);
  saved_at_ = Clock::now();
  looked_step_ = step_;
  next_look_ = step_ - step_ % options_.log_every + options_.log_every;
  note_time(true);
  if (copies_) copying_.emplace(world_, options_.copy_steps);
  copy_state();
  if (saves()) make_saver();
}

// Without checkpoints by the options, requests alone make a saver. It takes no memory for copies.
void Loop::make_saver() {
  // The loss of the newest checkpoint's weights may not have been checked yet, so the previous
  // checkpoint is kept too.
  const int keep = options_.keep == 1 ? 2 : static_cast<int>(options_.keep);
  saver_.emplace(world_, learner_->parts(false),
                 RunSaver::Options{folder_ ? folder_->checkpoint_path() : "", keep,
                                   options_.checkpoint_async && saves(), decisions_->best()});
}

// Continues from the checkpoint, or from copies in memory.
void Loop::restore() {
  const std::int64_t batch = learner_->batches().global;
  Progressed progressed = resumed_->progress(
      options_.plan.seed, recovers_ || resizes() ? resumed_->batch().global : batch,
      learner_->samples());
  if (recovers_ && is_broken("recovery.restored")) {  // loses a step, which tests must find
    ++progressed.step;
    progressed.sampler.position += batch;
  }
  resumed_->restore(learner_->model(), world_, learner_->workers());
  learner_->set_position(progressed.sampler);
  step_ = progressed.step;
  if (!recovers_) saved_step_ = step_;
  epoch_ = progressed.sampler.epoch;
  in_epoch_ = (progressed.sampler.position + batch - 1) / batch;
  const std::int64_t left = learner_->samples() - progressed.sampler.position;
  epoch_steps_ = in_epoch_ + (left + batch - 1) / batch;
  epoch_loss_ = progressed.epoch_loss;
  epoch_samples_ = progressed.epoch_samples;
  resumed_noise_ = progressed.noise;
  passes_ = std::min(progressed.passes, learner_->max_passes());
  decisions_->restore(progressed.best);
  resumed_.reset();
  if (!recovers_) log_info("resuming", {{"step", step_}, {"epoch", epoch_}});
  if (!recovers_ && (epoch_ >= options_.epochs || at_end())) {
    log_info("nothing is left to train: raise train.epochs or train.max_steps to go on" +
                 (decisions_->reason().empty() ? "" : "; " + decisions_->reason()),
             {{"epochs", options_.epochs}, {"max_steps", options_.max_steps}});
  }
}

// Tells the launcher the size of the job and the run folder, and the run folder the launcher, for
// `weft scale`.
void Loop::tell_launcher() const {
  if (world_.rank() != 0) return;
  launch::show_run(folder_->path());
  observe::tell_run_folder(std::filesystem::absolute(folder_->path()));
  agent::tell_launcher("size", std::to_string(world_.size()));
  agent::tell_launcher("run", std::filesystem::absolute(folder_->path()).string());
  const std::string file = folder_->path() + "/launcher";
  const char* const pid = std::getenv("WEFT_LAUNCHER_PID");
  std::error_code ignored;
  if (pid == nullptr) {
    std::filesystem::remove(file, ignored);
    return;
  }
  try {
    write_file_atomic(file, pid);
  } catch (const Error& error) {  // such as a full disk, which must not end a recovery
    log_warn(error.message() + "; weft scale does not find this run");
  }
}

}  // namespace weft::train::internal
