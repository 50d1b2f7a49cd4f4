// Shows the progress of a run on stderr: a bar on a terminal, plain lines elsewhere.
//
//   epoch 1/9:  45%|████▌     | 45/100 [00:12<00:15, run 5% <04:01, 3.6it/s, loss=0.32]
//
// The bar is redrawn at most ten times a second and fits the terminal's width. Log lines appear
// above it. Plain lines are written every 10 s and at the end of each task, without control
// characters. Only rank 0 shows progress. An update that draws nothing costs one clock reading. Not
// thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/observe/progress_mode.h"

namespace weft::observe {

// Parses "auto", "bar", "lines", "json" or "none". Throws Error(kInvalidArgument), naming these,
// for any other text.
ProgressMode parse_progress_mode(std::string_view name);

// The abilities of the terminal, as far as the environment variables allow them.
struct TerminalTraits {
  bool is_terminal = false;  // a terminal, and TERM is neither empty nor "dumb"
  bool color = false;        // FORCE_COLOR is set and not "0", or a terminal without NO_COLOR
  bool unicode = false;      // the locale's encoding is UTF-8
  int columns = 80;          // COLUMNS, else the width of the terminal
};
TerminalTraits terminal_traits(int fd);

// The state that is shown.
struct ProgressView {
  std::string task;  // "epoch 1/9"
  std::int64_t done = 0;
  std::int64_t total = 0;  // 0: unknown
  double seconds = 0;      // time since the task began
  std::int64_t first = 0;  // first step of the task; the speed does not count steps before it
  // The run that the task is a part of, in the same units. It may end before the task does. Total
  // 0, or that of the task: not shown.
  struct Run {
    std::int64_t done = 0, total = 0, first = 0;
    double seconds = 0;  // since its first step, with all that is between the tasks
  } run = {};
  std::vector<std::pair<std::string, double>> values;
};

// The bar without color, at most `columns` wide. If there is not enough room, it omits the values
// first, then the rate, the run, the bar and the clock.
std::string render_bar(const ProgressView& view, int columns, bool unicode);
// "epoch 1/9: 45/100 (45%) 00:12<00:15 run 5% <04:01 3.6it/s loss=0.32".
std::string render_line(const ProgressView& view);
// {"event":"progress","task":"epoch 1/9","done":45,"total":100,"seconds":12.5,"run_done":45,
// "run_total":900,"run_left_s":241,"values":{"loss":0.32}}. run_left_s is null while it is unknown.
std::string render_json(const ProgressView& view);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  using Values = std::vector<std::pair<std::string, double>>;

  struct Options {
    ProgressMode mode = ProgressMode::kAuto;
    int rank = 0;
    int fd = 2;
    std::chrono::milliseconds redraw{100};
    std::chrono::milliseconds line_every{10'000};
    std::function<Clock::time_point()> now = Clock::now;
  };

  explicit Progress(Options options);
  // Calls finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Begins the run that the next tasks are parts of: `total` steps, of which `done` are done.
  void start_run(std::int64_t total, std::int64_t done);
  // The run has another number of steps from now on.
  void change_run(std::int64_t total);
  // Begins a task of `total` steps (0: unknown) at step `first`. Finishes the previous task if it
  // is still open.
  void start(const std::string& task, std::int64_t total, std::int64_t first = 0);
  // Reports that `done` steps of the task are done. Values, if given, replace the previous ones.
  void update(std::int64_t done, const Values& values = {});
  // Shows the final state of the open task at once, and ends the line.
  void finish();

  // The chosen mode, never kAuto.
  ProgressMode mode() const { return options_.mode; }

 private:
  void draw(bool last);
  void draw_bar(bool last);

  Options options_;
  ProgressView view_;
  bool open_ = false;
  Clock::time_point started_, run_started_;
  Clock::time_point next_;
  int drawn_columns_ = 0;
};

}  // namespace weft::observe
