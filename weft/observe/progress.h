// How far a run is, on stderr: a bar on a terminal, plain lines elsewhere.
//
//   epoch 1:  45%|████▌     | 45/100 [00:12<00:15, 3.6it/s, loss=0.32]
//
// The bar is redrawn at most ten times a second and keeps to the terminal's width; log lines appear
// above it. Lines hold no control characters and come every 10 s and at the end of each task. Only
// rank 0 shows anything. An update that draws nothing costs one clock reading. Not for several
// threads at once.
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

// "auto", "bar", "lines", "json", "none"; else throws kInvalidArgument naming them.
ProgressMode parse_progress_mode(std::string_view name);

// What the terminal and the environment allow.
struct TerminalTraits {
  bool is_terminal = false;  // and TERM is neither empty nor "dumb"
  bool color = false;        // a terminal without NO_COLOR, or FORCE_COLOR (not "0")
  bool unicode = false;      // the locale's encoding is UTF-8
  int columns = 80;          // COLUMNS, else the terminal's
};
TerminalTraits terminal_traits(int fd);

// What is shown at one moment.
struct ProgressView {
  std::string task;  // "epoch 1"
  std::int64_t done = 0;
  std::int64_t total = 0;  // 0: not known
  double seconds = 0;      // since the task began
  std::int64_t first =
      0;  // where it began: what a resumed run did before says nothing about its speed
  std::vector<std::pair<std::string, double>> values;
};

// The bar without color, at most `columns` wide; on narrow terminals values go first, then the
// rate, the bar and the clock.
std::string render_bar(const ProgressView& view, int columns, bool unicode);
// "epoch 1: 45/100 (45%) 00:12<00:15 3.6it/s loss=0.32".
std::string render_line(const ProgressView& view);
// {"event":"progress","task":"epoch
// 1","done":45,"total":100,"seconds":12.5,"values":{"loss":0.32}}.
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
  // Ends the task that is open, as it stands.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Begins a task of `total` steps (0: not known) at step `first`; one that is open is ended
  // before.
  void start(const std::string& task, std::int64_t total, std::int64_t first = 0);
  // `done` steps of the task are done; values, when there are any, replace the former ones.
  void update(std::int64_t done, const Values& values = {});
  // Shows the task's last state, whatever the time, and ends the line.
  void finish();

  // The mode that was chosen: never kAuto.
  ProgressMode mode() const { return options_.mode; }

 private:
  void draw(bool last);
  void draw_bar(bool last);

  Options options_;
  ProgressView view_;
  bool open_ = false;
  Clock::time_point started_;
  Clock::time_point next_;
  int drawn_columns_ = 0;
};

}  // namespace weft::observe
