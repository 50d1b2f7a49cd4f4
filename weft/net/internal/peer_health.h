// When a peer was heard, and why it may be lost. The clock is an argument.
//
// A peer is lost if it is silent for too long, or if a data stream closes without a goodbye and the
// control stream does not report the reason soon. The owner guards it.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

namespace weft::net::internal {

class PeerHealth {
 public:
  using Time = std::chrono::nanoseconds;  // since the start of any clock

  // `timeout`: silence after which the peer is lost.
  PeerHealth(Time now, std::chrono::milliseconds timeout)
      : timeout_(timeout), heard_(now), beaten_(now) {}

  void hear(Time now) { heard_ = now; }
  // A data stream has closed without a goodbye. The first cause stays.
  void suspect(const std::string& cause, Time now) {
    if (suspected_) return;
    suspected_ = now;
    cause_ = cause;
  }
  // Why the peer is lost, if it is.
  std::optional<std::string> lost(Time now) const {
    constexpr auto kGrace = std::chrono::milliseconds(250);
    if (suspected_ && now - *suspected_ >= kGrace) return cause_;
    if (now - heard_ <= timeout_) return std::nullopt;
    return "nothing was heard of it for " + std::to_string(timeout_.count()) + " ms";
  }
  // True if a heartbeat is due. It counts as sent then.
  bool beat(Time now) {
    if (now - beaten_ < std::min<Time>(Time(timeout_) / 4, std::chrono::seconds(1))) return false;
    beaten_ = now;
    return true;
  }

 private:
  std::chrono::milliseconds timeout_;
  Time heard_, beaten_;
  std::optional<Time> suspected_;
  std::string cause_;
};

}  // namespace weft::net::internal
