// Link: a socket between a process and the one that started it, for short texts in both directions.
// A text is a verb and, after a blank, its value; messages.h has a type for each. One thread at a
// time reads an end; any thread may write. The end of a process closes its end of the socket.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/file.h"

namespace weft::rank_link {

struct Message {
  std::string verb, value;
  bool operator==(const Message&) const = default;
};

class Link {
 public:
  // Takes over the descriptor of one end.
  explicit Link(UniqueFd end) : end_(std::move(end)) {}
  // Two connected ends, close-on-exec. Throws Error(kUnavailable).
  static std::pair<Link, Link> make();

  // Sends without waiting. False: the other end is closed or does not read, or the text is longer
  // than the system allows (at least 200 KiB), which is logged.
  bool tell(const std::string& verb, const std::string& value = "") noexcept;
  // Returns the oldest text that has come, without waiting.
  std::optional<Message> next() noexcept;
  // Waits for a text. nullopt: the deadline passed, or the other end is closed.
  std::optional<Message> wait(Deadline deadline) noexcept;
  // True if the other end is closed and next() has returned all that it sent.
  bool ended() const { return ended_; }
  int fd() const { return end_.get(); }

 private:
  UniqueFd end_;
  bool ended_ = false;
};

// Environment variable with the descriptor of a rank's end.
constexpr const char* kLinkVariable = "WEFT_LINK_FD";
// This process's link to the launcher that started it; null without one. Made at the first call.
Link* launcher() noexcept;

}  // namespace weft::rank_link
