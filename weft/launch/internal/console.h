// Where the launcher prints: its stdout or stderr. Never waits for a reader, since the launcher has
// one thread: a terminal that was stopped (Ctrl-S), or a pager that shows its first page, must not
// keep it from signals and ends. So text waits here until the reader takes it.
//
// While text waits, the launcher does not read the output of ranks (LineRelay), which then wait as
// at a full pipe. So no output is lost. Ranks of a job that ends must not wait: then their output
// is read, and text beyond a limit is dropped and counted.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "weft/launch/process.h"

namespace weft::launch::internal {

class Console {
 public:
  static constexpr std::size_t kMost = 16 << 20;

  // Uses the descriptor, which must stay open. Of a job that ends, at most `most` bytes wait.
  explicit Console(int fd, std::size_t most = kMost);
  // Waits for a reader for at most a second.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Prints whole lines, now or later. Nothing if the reader is gone.
  void print(const std::string& text);
  // Prints as much of the waiting text as is possible without waiting.
  void flush();
  // Call it before the output of all ranks is read: no rank is read more often than the others.
  // `ends`: the job ends.
  void begin_turn(bool ends);
  // Adds the descriptor to wait for, if any text waits.
  void watch(std::vector<pollfd>& watched) const;
  // True while text waits.
  bool is_full() const { return !waiting_.empty(); }
  // True if ranks have to wait in this turn.
  bool holds_ranks() const { return holds_ranks_; }
  // Drops the waiting text.
  void drop();
  // Bytes that were dropped since the last call.
  std::size_t take_dropped();

 private:
  long write_some(const char* bytes, std::size_t size) const;

  const int fd_;
  const std::size_t most_;
  bool is_socket_ = false, is_file_ = false;
  Fd own_;  // The same pipe or terminal, non-blocking for this process alone. None: not possible.
  std::deque<std::string> waiting_;
  std::size_t begun_ = 0;          // bytes of waiting_.front() that are printed
  std::size_t waiting_bytes_ = 0;  // with these
  std::size_t dropped_ = 0;
  bool ends_ = false, holds_ranks_ = false;
};

}  // namespace weft::launch::internal
