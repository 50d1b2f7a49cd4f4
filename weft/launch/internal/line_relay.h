// Forwards the output of a rank in whole lines, so that lines of several ranks never mix. Copies it
// to a log file, and keeps the last lines for the failure report.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "weft/launch/internal/console.h"
#include "weft/launch/process.h"

namespace weft::launch::internal {

class LineRelay {
 public:
  static constexpr std::size_t kTailLines = 20;
  // Longer lines are forwarded in pieces.
  static constexpr std::size_t kMaxLine = 64 * 1024;

  struct Options {
    Console* console = nullptr;  // null: not shown
    std::string prefix;
    Fd log;  // Raw bytes; none: not logged. If it cannot be written, it ends, and `errors` says so.
    Console* errors = nullptr;  // null: nothing is said
    bool keep_tail = false;
  };

  LineRelay() = default;  // for a stream that bypasses the launcher
  // `pipe` is the reading end; it is made non-blocking.
  LineRelay(Fd pipe, Options options);

  // Adds the pipe to wait for, unless it is closed or its rank has to wait for the console.
  void watch(std::vector<pollfd>& watched) const;
  // Reads available data without waiting, unless its rank has to wait for the console. Closes at
  // the end of the stream.
  void pump();
  // Called after the writer has ended: reads the rest, including an unfinished last line.
  void finish();
  // Forwards what has come, and gives the pipe to another relay. The writer goes on.
  Fd release();
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  static constexpr int kRounds = 64;  // most reads of the pipe in one call

  bool is_held() const { return options_.console != nullptr && options_.console->holds_ranks(); }
  void read_pipe(int rounds_if_full);
  void write_log(std::string_view bytes);
  void show_unfinished_line();
  void take(const char* bytes, std::size_t size, std::string& shown);
  void line_done(std::string& shown);

  Fd pipe_;
  Options options_;
  std::string line_;
  std::deque<std::string> tail_;
};

}  // namespace weft::launch::internal
