// Passes on what a rank prints, whole lines at a time, so that lines of several ranks never mix;
// copies it to a log file; remembers the last lines for the report of a failure.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "weft/launch/process.h"

namespace weft::launch::internal {

class LineRelay {
 public:
  static constexpr std::size_t kTailLines = 20;
  // A longer line is passed on in pieces.
  static constexpr std::size_t kLongestLine = 64 * 1024;

  struct Options {
    int console = -1;  // -1: not shown
    std::string prefix;
    Fd log;  // raw bytes; none: not logged
    bool keep_tail = false;
  };

  LineRelay() = default;  // of a stream that goes past the launcher
  // `pipe` is the reading end; it is made non-blocking.
  LineRelay(Fd pipe, Options options);

  // -1 when closed.
  int fd() const { return pipe_.get(); }
  // Takes what is there now, without waiting; closes at the end of the stream.
  void pump();
  // The writer has ended: takes what is left, and the last line even if it is not ended.
  void finish();
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void take(const char* bytes, std::size_t size, std::string& shown);
  void line_done(std::string& shown);

  Fd pipe_;
  Options options_;
  std::string line_;
  std::deque<std::string> tail_;
};

// All of it, also to a descriptor that is slow; gives up silently when nobody reads any more.
void write_all(int fd, const std::string& text);

}  // namespace weft::launch::internal
