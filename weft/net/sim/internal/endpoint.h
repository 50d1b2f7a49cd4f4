// An endpoint over simulated sockets, with the same frames, message matching and errors as that of
// TCP.
//
// Belongs to one rank. The rank's thread makes its calls. Events call its network side only while
// no rank runs, so there are never two calls at once.
#pragma once

#include <deque>
#include <vector>

#include "weft/net/internal/failure.h"
#include "weft/net/internal/mailbox.h"
#include "weft/net/sim/internal/peer_connection.h"
#include "weft/net/sim/internal/scheduler.h"

namespace weft::net::sim::internal {

// Start of the virtual clock: so far in the future that code that reads the real clock finds no
// deadline passed.
inline constexpr Deadline::Clock::time_point kEpoch{std::chrono::hours(24 * 365 * 100)};

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(int rank, const Options& options, Network& network, Scheduler& scheduler);

  int rank() const override { return rank_; }
  int world() const override { return options_.world; }
  const char* name() const override { return "sim"; }
  std::uint32_t epoch() const override { return options_.epoch; }
  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override;
  int await_any(Channel channel, Deadline deadline) override;
  void fail(const Error& why) noexcept override;
  std::optional<Error> failure() const override { return failure_.error(); }

  // Called by the rank's thread. Waits until an event occurs or the time is reached.
  void wait_until(Time when);
  // Sends a goodbye and waits for a while for it to arrive. No calls are allowed after it.
  void leave();

  // Called by events.
  void deliver(Packet& packet) { connection(packet.from).deliver(packet); }
  void tick();
  void die(bool power_off);
  void set_stopped(bool stopped);
  void cut(int peer) { connection(peer).reset(); }

 private:
  using Receipts = std::vector<net::internal::Receipt>;

  PeerConnection& connection(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  template <typename Body>
  void guarded(const Body& body);
  void end_group(const Error& error);
  void silence();
  void wake();
  void changed(int peer, int stream);
  void send(Outgoing& message);

  void check_left(const Receipts& receipts) const;
  void check_company() const;
  void time_out(Channel channel, const Receipts& receipts, const std::vector<Outgoing>& outgoing);

  const int rank_;
  const Options& options_;
  Network& network_;
  Scheduler& scheduler_;
  net::internal::Mailbox mailbox_;
  net::internal::Failure failure_;
  std::deque<PeerConnection> peers_;  // by rank
  bool leaving_ = false;
  bool dead_ = false;
  bool stopped_ = false;     // the process is stopped
  bool wake_later_ = false;  // it was woken while stopped
  std::uint64_t waits_ = 0;  // number of waits: timers of older waits are ignored
};

}  // namespace weft::net::sim::internal
