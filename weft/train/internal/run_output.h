// What a run shows and writes on rank 0: the run folder, metrics, the progress line, the report,
// and messages to the launcher. Other ranks have a progress line that shows nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/observe/progress.h"
#include "weft/observe/run/metrics.h"
#include "weft/observe/run/run_folder.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/options.h"

namespace weft::train::internal {

// Unit of speed on the progress line.
struct Throughput {
  const char* name = "samples/s";
  double per_sample = 1;
};

class RunOutput {
 public:
  // `options` and `config` must outlive it.
  RunOutput(const Options& options, const Config& config, Group world);

  // Creates the run folder, or opens that of a resumed run. `has_state`: the ranks hold the state
  // of the run in memory. Collective.
  void open(bool has_state);
  // Begins the metrics after step `done`. Collective. `recovers`: the state was in memory.
  void start(std::int64_t done, bool recovers, const StepLog::Flops& flops, Throughput throughput);

  // These are empty or null on ranks other than 0.
  std::string path() const { return folder_ ? folder_->path() : ""; }
  std::string checkpoint_path() const { return folder_ ? folder_->checkpoint_path() : ""; }
  observe::Metrics* metrics() const { return metrics_.get(); }

  observe::Progress& line() { return line_; }
  // Values of the progress line.
  const observe::Progress::Values& shown() const { return shown_; }
  // show() shows the mean speed since this call, or since the last show().
  void begin_window() { window_began_ = Clock::now(); }
  void add_samples(double samples) { window_samples_ += samples; }
  // The time since `start` does not count.
  void leave_out(std::chrono::steady_clock::time_point start) {
    window_began_ += Clock::now() - start;
  }
  void show(const StepLog::Seen& seen, std::optional<double> grad_norm);
  // Values that callbacks have logged, for the progress line.
  void add_logged(const observe::Values& logged);
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

  void open_folder(bool has_state);
  void write_environment() const;
  void tell_launcher() const;
  void tell_rate(double samples, double seconds);

  const Options& options_;
  const Config& config_;
  const Group world_;
  StepLog::Flops flops_;
  Throughput throughput_;
  std::unique_ptr<observe::RunFolder> folder_;
  std::unique_ptr<observe::Metrics> metrics_;
  observe::Progress line_;
  observe::Progress::Values shown_;
  observe::Progress::Values logged_;  // the part of it that callbacks have logged
  Clock::time_point window_began_;    // at the last show(); evaluations and saves do not count
  double window_samples_ = 0;
  double rate_samples_ = 0, rate_seconds_ = 0;  // since the launcher was told the last rate
  Clock::time_point ranks_shown_{};             // when ranks.json was last written
  bool is_gone_ = false;                        // the folder
};

}  // namespace weft::train::internal
