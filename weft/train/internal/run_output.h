// What a run shows and writes on rank 0: the run folder, metrics, the progress line, the report,
// and messages to the launcher. Other ranks have a progress line that shows nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/log.h"
#include "weft/comm/group.h"
#include "weft/observe/progress.h"
#include "weft/observe/run/metrics.h"
#include "weft/observe/run/run_folder.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/training_speed.h"
#include "weft/train/options.h"

namespace weft::train::internal {

// Unit of speed on the progress line.
struct Throughput {
  const char* name = "samples/s";
  double per_sample = 1;
};

// Fields of the log line at the end of an epoch, besides losses and metrics.
using EpochFields =
    std::function<std::vector<LogField>(const Evaluation& evaluation, double samples_per_s)>;

class RunOutput {
 public:
  // `options` and `config` must outlive it.
  RunOutput(const Options& options, const Config& config, Group world);

  // Creates the run folder, or opens that of a resumed run. Collective.
  void open();
  // Begins the metrics after step `done`. Collective. `recovers`: the state was in memory.
  void start(std::int64_t done, bool recovers, const StepLog::Flops& flops, Throughput throughput);
  void set_epoch_fields(EpochFields fields) { fields_ = std::move(fields); }

  // These are empty or null on ranks other than 0.
  std::string path() const { return folder_ ? folder_->path() : ""; }
  std::string checkpoint_path() const { return folder_ ? folder_->checkpoint_path() : ""; }
  observe::Metrics* metrics() const { return metrics_.get(); }

  observe::Progress& line() { return line_; }
  // Values of the progress line.
  const observe::Progress::Values& shown() const { return shown_; }
  // show() shows the speed of its window.
  TrainingSpeed& speed() { return speed_; }
  const TrainingSpeed& speed() const { return speed_; }
  void show(const StepLog::Seen& seen);
  // Values that callbacks have logged, for the progress line.
  void add_logged(const observe::Values& logged);
  // Metrics of an evaluation after this step and epoch.
  void add_evaluation(const RunCount& at, const Evaluation& evaluation);
  // Logs the end of an epoch. `evaluation`: the one after this step; without samples if there was
  // none. `experts`: their use, which the metrics get too.
  void log_epoch(const RunCount& at, double train_loss, const Evaluation& evaluation,
                 const observe::Values& experts);
  // True if the states of the ranks are to be shown: about once a second, and always if `now`.
  bool shows_ranks(bool now);
  // Logs an error once if the run folder was deleted or moved.
  void watch_folder();

  // Writes what is not written yet.
  void flush();
  // At the end of the run. Throws Error(kUnavailable) if the run folder is gone.
  void write_report() const;

 private:
  using Clock = std::chrono::steady_clock;

  void open_folder();
  void write_environment() const;
  void tell_launcher() const;

  const Options& options_;
  const Config& config_;
  const Group world_;
  StepLog::Flops flops_;
  Throughput throughput_;
  EpochFields fields_;
  std::unique_ptr<observe::RunFolder> folder_;
  std::unique_ptr<observe::Metrics> metrics_;
  observe::Progress line_;
  observe::Progress::Values shown_;
  observe::Progress::Values logged_;  // the part of it that callbacks have logged
  TrainingSpeed speed_;
  Clock::time_point ranks_shown_{};  // when ranks.json was last written
  bool is_gone_ = false;             // the folder
};

}  // namespace weft::train::internal
