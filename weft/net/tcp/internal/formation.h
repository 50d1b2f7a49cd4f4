// Makes authenticated connections between all pairs of ranks, from listening ports and addresses.
// Rejects foreign connections.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/net/tcp/handshake_connection.h"

namespace weft::net::internal {

// [peer][stream]. A rank has no connection to itself.
using Mesh = std::vector<std::vector<Fd>>;

struct FormationOptions {
  Identity me;
  std::vector<std::string> addresses;  // by rank
  std::chrono::milliseconds handshake_timeout{5'000};
  std::function<std::optional<int>()> lost_peer;  // may be empty
  std::function<void(const std::string&)> on_refused;
};

// The higher rank dials, the lower one accepts. One thread with one poll loop: a slow or hostile
// connection does not delay others.
class Formation {
 public:
  Formation(const FormationOptions& options, const Fd& listener);

  // Throws kTimeout with the missing ranks, kPeerLost for a rank that is known to have ended, or
  // the reason of a rejection by a peer.
  Mesh run(Deadline deadline);

 private:
  struct Pending {
    HandshakeConnection shake;
    Deadline deadline;
    std::string where;  // address of the other side
  };
  struct Dial {
    int peer;
    int stream;
    Deadline::Clock::time_point again;
    bool under_way = false;
    std::string failure{};  // reason of the last failed attempt
  };

  bool complete() const;
  void look_for_lost_peer();
  void start_dials();
  void accept_all();
  void expire();
  void poll_once(Deadline deadline);
  // Returns false if the connection has ended or is established.
  bool advance(Pending& p);
  void refuse(const Pending& p, Verdict verdict);
  void release_dial(const Pending& p, const std::string& failure);
  std::string absence_of(int peer) const;
  [[noreturn]] void refused_by(const Pending& p, Verdict verdict) const;
  [[noreturn]] void timed_out() const;

  const FormationOptions& options_;
  Deadline::Clock::time_point look_again_{};
  const Fd& listener_;
  Mesh mesh_;
  std::list<Pending> pending_;  // oldest first
  std::vector<Dial> dials_;
  std::size_t limit_;
  std::size_t refused_ = 0;
  std::string last_refusal_;
  Deadline::Clock::time_point next_report_{};
};

}  // namespace weft::net::internal
