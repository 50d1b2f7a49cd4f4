// Tells whether the neighbors of a server in a chain are alive, by their signs of life. For one
// thread; the clock is an argument.
#pragma once

#include <chrono>
#include <optional>

#include "weft/ps/internal/replica.h"

namespace weft::ps::internal {

class Neighbors {
 public:
  using Clock = std::chrono::steady_clock;

  // The replica may have adopted a view. A new neighbor begins with a sign of life.
  void adopt(const Replica& replica, Clock::time_point now);
  // A message has come, which is a sign of life. Its sender may have announced a pause.
  void hear(const Replica& replica, const ChainMessage& message, Clock::time_point now);
  // This server was busy for so long until `now`, and has read nothing. So nobody was silent.
  void forgive(Clock::duration busy, Clock::time_point now);

  // No sign of life for more than `timeout`. A server that receives the state has longer: it is
  // silent while it builds the state, and holds up nobody.
  bool previous_is_silent(Clock::time_point now, Clock::duration timeout) const;
  bool next_is_silent(const Replica& replica, Clock::time_point now, Clock::duration timeout) const;

 private:
  struct Neighbor {
    std::optional<Member> member;
    Clock::time_point heard;  // after now: in a pause
  };
  Neighbor previous_, next_;
};

}  // namespace weft::ps::internal
