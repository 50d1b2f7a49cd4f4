#include "weft/launch/internal/line_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::launch::internal {

LineRelay::LineRelay(Fd pipe, Options options)
    : pipe_(std::move(pipe)), options_(std::move(options)) {
  ::fcntl(pipe_.get(), F_SETFL, ::fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
}

void LineRelay::watch(std::vector<pollfd>& watched) const {
  if (pipe_ && !is_held()) watched.push_back({pipe_.get(), POLLIN, 0});
}

void LineRelay::pump() {
  constexpr int kRoundsIfFull = 4;  // so that not much waits for the console
  if (!is_held()) read_pipe(kRoundsIfFull);
}

void LineRelay::read_pipe(int rounds_if_full) {
  char buffer[16 * 1024];
  // Limit per call, so that a rank that prints endlessly does not starve the others.
  for (int round = 0; pipe_ && round < kRounds; ++round) {
    const bool is_full = options_.console != nullptr && options_.console->is_full();
    if (is_full && round >= rounds_if_full) break;
    const ssize_t got = ::read(pipe_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      pipe_.reset();
      break;
    }
    std::string shown;
    if (options_.log) write_log(std::string_view(buffer, static_cast<std::size_t>(got)));
    take(buffer, static_cast<std::size_t>(got), shown);
    if (options_.console != nullptr) options_.console->print(shown);
  }
}

// A full disk ends the log, and not the rank.
void LineRelay::write_log(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(options_.log.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string why = std::strerror(errno);
      options_.log.reset();
      if (options_.errors != nullptr)
        options_.errors->print(
            "weft: " + options_.prefix +
            "the log of this rank ends here, since it cannot be written: " + why + "\n");
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Also while ranks have to wait: the pipe goes with its rank.
void LineRelay::finish() {
  read_pipe(kRounds);
  pipe_.reset();
  show_unfinished_line();
}

Fd LineRelay::release() {
  pump();
  show_unfinished_line();
  return std::move(pipe_);
}

void LineRelay::show_unfinished_line() {
  if (line_.empty()) return;
  std::string shown;
  line_done(shown);
  if (options_.console != nullptr) options_.console->print(shown);
}

void LineRelay::take(const char* bytes, std::size_t size, std::string& shown) {
  for (std::string_view left(bytes, size); !left.empty();) {
    const auto end = left.find('\n');
    line_.append(left.substr(0, end));
    if (end == std::string_view::npos) {
      if (line_.size() >= kMaxLine) line_done(shown);
      return;
    }
    line_done(shown);
    left.remove_prefix(end + 1);
  }
}

void LineRelay::line_done(std::string& shown) {
  // Lines of weft's own log contain the rank already.
  const bool named = !options_.prefix.empty() && line_.starts_with(options_.prefix);
  if (options_.console != nullptr) shown += (named ? "" : options_.prefix) + line_ + '\n';
  if (options_.keep_tail) {
    tail_.push_back(line_);
    if (tail_.size() > kTailLines) tail_.pop_front();
  }
  line_.clear();
}

}  // namespace weft::launch::internal
