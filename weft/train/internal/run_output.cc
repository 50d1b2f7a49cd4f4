#include "weft/train/internal/run_output.h"

#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/texts.h"
#include "weft/launch/live_page.h"
#include "weft/observe/position/position.h"
#include "weft/observe/report/environment.h"
#include "weft/observe/report/report.h"
#include "weft/rank_link/messages.h"
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

RunOutput::RunOutput(const Options& options, const Config& config, Group world)
    : options_(options),
      config_(config),
      world_(std::move(world)),
      line_({.mode = options.progress, .rank = world_.rank()}) {}

void RunOutput::open() {
  comm::together(world_, [&] {
    if (world_.rank() == 0) open_folder();
  });
}

void RunOutput::open_folder() {
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
  rank_link::tell_launcher(
      rank_link::RunFolder{std::filesystem::absolute(folder_->path()).string()});
  if (!changes.empty()) log_info("the run resumes with changed values", changes);
  write_environment();
}

void RunOutput::write_environment() const {
  const auto weft = std::string(WEFT_VERSION), torch = std::string(TORCH_VERSION);
  try {
    observe::write_environment(
        folder_->path() + "/environment.json",
        {{"ranks", std::to_string(world_.size())}, {"weft", weft}, {"libtorch", torch}});
  } catch (const Error& error) {  // such as a full disk, when all ranks start again
    if (!options_.resume) throw;
    log_warn(error.message() + "; the file describes the environment before");
  }
}

void RunOutput::start(std::int64_t done, bool recovers, const StepLog::Flops& flops,
                      Throughput throughput) {
  flops_ = flops;
  throughput_ = throughput;
  comm::together(world_, [&] {
    if (!folder_) return;
    folder_->commit();
    tell_launcher();
    // The copies in memory may be older than the newest checkpoint. If all ranks are lost later,
    // the run resumes from that checkpoint and needs the metrics of the steps before it.
    const std::int64_t known = recovers ? checkpoint::newest_step(folder_->checkpoint_path()) : -1;
    metrics_ = std::make_unique<observe::Metrics>(folder_->path(), done + 1, known);
  });
}

// Tells the launcher the size of the job and the run folder, and the run folder the launcher, for
// `weft scale`.
void RunOutput::tell_launcher() const {
  launch::show_run(folder_->path());
  observe::tell_run_folder(std::filesystem::absolute(folder_->path()));
  rank_link::tell_launcher(rank_link::GroupSize{world_.size()});
  rank_link::tell_launcher(
      rank_link::RunBegun{std::filesystem::absolute(folder_->path()).string()});
  const std::string file = folder_->path() + "/launcher";
  const char* const pid = variable_or_null("WEFT_LAUNCHER_PID");
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

void RunOutput::show(const StepLog::Seen& seen) {
  const TrainingSpeed::Window window = speed_.take_window();
  const double seconds = window.seconds;
  shown_ = {{"loss", seen.loss}};
  if (seen.grad_norm) shown_.emplace_back("grad_norm", *seen.grad_norm);
  if (seen.noise_scale) shown_.emplace_back("noise_scale", rounded(*seen.noise_scale, 0));
  if (seconds > 0)
    shown_.emplace_back(throughput_.name,
                        rounded(window.samples * throughput_.per_sample / seconds, 0));
  if (seconds > 0 && world_.rank() == 0) {
    if (const auto rate = speed_.take_rate(window))
      rank_link::tell_launcher(rank_link::Throughput{*rate});
  }
  const double flops = flops_.per_sample * window.samples;
  if (flops > 0 && flops_.peak > 0 && seconds > 0)
    shown_.emplace_back("mfu", rounded(flops / seconds / flops_.peak, 3));
  shown_.emplace_back("memory_gb", std::round(seen.memory_gb * 100) / 100);
  shown_.insert(shown_.end(), logged_.begin(), logged_.end());
}

void RunOutput::add_logged(const observe::Values& logged) {
  for (const auto& value : logged) {
    const auto same =
        std::ranges::find(logged_, value.first, [](const auto& one) { return one.first; });
    if (same == logged_.end()) {
      logged_.push_back(value);
    } else {
      *same = value;
    }
  }
}

void RunOutput::add_evaluation(const RunCount& at, const Evaluation& evaluation) {
  if (!metrics_) return;
  observe::Values values(evaluation.metrics.begin(), evaluation.metrics.end());
  values.emplace_back("test_loss", evaluation.loss);
  metrics_->add("test", at.step, at.epoch, values);
}

void RunOutput::log_epoch(const RunCount& at, double train_loss, const Evaluation& evaluation,
                          const observe::Values& experts) {
  std::vector<LogField> fields{{"epoch", at.epoch}, {"train_loss", rounded(train_loss, 4)}};
  if (evaluation.samples > 0) fields.emplace_back("test_loss", rounded(evaluation.loss, 4));
  for (const auto& [name, value] : evaluation.metrics) fields.emplace_back(name, rounded(value, 4));
  for (LogField& field : fields_(evaluation, speed_.mean())) fields.push_back(std::move(field));
  // Without an evaluation, this record alone says that the epoch is complete.
  if (metrics_ && (!experts.empty() || evaluation.samples == 0))
    metrics_->add("train", at.step, at.epoch, experts);
  for (const auto& [name, value] : experts) fields.emplace_back(name, rounded(value, 4));
  log_info("epoch done", fields);
}

bool RunOutput::shows_ranks(bool now) {
  const auto time = Clock::now();
  if (!now && time - ranks_shown_ < std::chrono::seconds(1)) return false;
  ranks_shown_ = time;
  return true;
}

void RunOutput::watch_folder() {
  if (!folder_ || is_gone_ || !folder_->is_gone()) return;
  is_gone_ = true;
  log_error("the run folder " + folder_->path() +
            " was deleted or moved: its metrics and log are lost; training goes on");
}

void RunOutput::flush() {
  if (metrics_) metrics_->flush();
}

void RunOutput::write_report() const {
  if (!folder_) return;
  if (folder_->is_gone()) {
    throw Error(Errc::kUnavailable,
                "the run folder " + folder_->path() +
                    " was deleted or moved while the run trained: its metrics and log are lost");
  }
  try {
    observe::write_report({folder_->path()}, folder_->path() + "/report.html");
  } catch (const std::exception& error) {
    log_warn("cannot write the report of the run: " + describe(error));
  }
}

}  // namespace weft::train::internal
