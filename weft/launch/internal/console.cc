#include "weft/launch/internal/console.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "weft/base/deadline.h"

namespace weft::launch::internal {

// O_NONBLOCK would hold for all processes that share the descriptor, such as the user's shell. So a
// pipe or a terminal is opened once more.
Console::Console(int fd, std::size_t most) : fd_(fd), most_(most) {
  struct stat what {};
  if (::fstat(fd, &what) != 0) return;
  is_socket_ = S_ISSOCK(what.st_mode);
  is_file_ = !is_socket_ && !S_ISFIFO(what.st_mode) && ::isatty(fd) == 0;
  if (is_socket_ || is_file_) return;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  own_ = Fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

Console::~Console() {
  const Deadline deadline = Deadline::in(std::chrono::seconds(1));
  for (flush(); is_full() && !deadline.passed(); flush()) {
    std::vector<pollfd> writable;
    watch(writable);
    ::poll(writable.data(), writable.size(), deadline.left_ms());
  }
}

void Console::print(const std::string& text) {
  if (ends_ && waiting_bytes_ + text.size() > most_) {
    dropped_ += text.size();
  } else if (!text.empty()) {
    waiting_bytes_ += text.size();
    waiting_.push_back(text);
  }
  flush();
}

void Console::begin_turn(bool ends) {
  flush();
  ends_ = ends;
  holds_ranks_ = is_full() && !ends;
}

void Console::flush() {
  while (is_full()) {
    const std::string& text = waiting_.front();
    const long written = write_some(text.data() + begun_, text.size() - begun_);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {  // the reader is gone, or the disk is full
      waiting_.clear();
      begun_ = waiting_bytes_ = 0;
      return;
    }
    begun_ += static_cast<std::size_t>(written);
    if (begun_ < text.size()) continue;
    waiting_bytes_ -= text.size();
    waiting_.pop_front();
    begun_ = 0;
  }
}

// As write(). EAGAIN: the reader takes nothing now.
long Console::write_some(const char* bytes, std::size_t size) const {
  if (is_socket_) return ::send(fd_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (is_file_) return ::write(fd_, bytes, size);
  if (own_) return ::write(own_.get(), bytes, size);
  // A pipe that is writable takes so many bytes without waiting.
  pollfd writable{fd_, POLLOUT, 0};
  if (::poll(&writable, 1, 0) == 1)
    return ::write(fd_, bytes, std::min<std::size_t>(size, PIPE_BUF));
  errno = EAGAIN;
  return -1;
}

void Console::watch(std::vector<pollfd>& watched) const {
  if (is_full()) watched.push_back({own_ ? own_.get() : fd_, POLLOUT, 0});
}

void Console::drop() {
  dropped_ += waiting_bytes_ - begun_;
  waiting_.clear();
  begun_ = waiting_bytes_ = 0;
}

std::size_t Console::take_dropped() { return std::exchange(dropped_, 0); }

}  // namespace weft::launch::internal
