// Forwards the output of a rank in whole lines, so that lines of several ranks never mix. Copies it
// to a log file, and keeps the last lines for the failure report.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "weft/launch/process.h"

namespace weft::launch::internal {

class LineRelay {
 public:
  static constexpr std::size_t kTailLines = 20;
  // Longer lines are forwarded in pieces.
  static constexpr std::size_t kMaxLine = 64 * 1024;

  struct Options {
    int console = -1;  // -1: not shown
    std::string prefix;
    Fd log;  // raw bytes; none: not logged. If it cannot be written, stderr says so, and it ends.
    bool keep_tail = false;
  };

  LineRelay() = default;  // for a stream that bypasses the launcher
  // `pipe` is the reading end; it is made non-blocking.
  LineRelay(Fd pipe, Options options);

  // -1 if closed.
  int fd() const { return pipe_.get(); }
  // Reads available data without waiting. Closes at the end of the stream.
  void pump();
  // Called after the writer has ended: reads the rest, including an unfinished last line.
  void finish();
  // Forwards what has come, and gives the pipe to another relay. The writer goes on.
  Fd release();
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void keep(std::string_view bytes);
  void show_unfinished_line();
  void take(const char* bytes, std::size_t size, std::string& shown);
  void line_done(std::string& shown);

  Fd pipe_;
  Options options_;
  std::string line_;
  std::deque<std::string> tail_;
};

// Writes everything, also to a slow descriptor. Stops silently if the reader is gone.
void write_all(int fd, const std::string& text);

}  // namespace weft::launch::internal
