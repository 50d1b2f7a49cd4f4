// Moves the frames of one rank between its mailbox and the streams of all peers. Never waits; the
// owner guards and drives it.
#pragma once

#include <functional>
#include <vector>

#include "weft/net/tcp/internal/peer_connection.h"

namespace weft::net::internal {

class Engine {
 public:
  using Clock = PeerConnection::Clock;

  // The last stream of each peer is its control stream.
  Engine(const EngineOptions& options, Mesh mesh);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int world() const { return static_cast<int>(peers_.size()); }
  // For epoll_wait of a waiting thread: readable streams, writable streams with data to send, and
  // wake().
  int epoll_fd() const { return epoll_.get(); }
  void wake() const;

  // Start transfers. All throw the error that ends the group: kPeerLost, kCorrupt,
  // kInvalidArgument, kAborted (another rank's error).
  void post(Channel channel, Receipt& receipt);
  void send(Outgoing& message);
  // See Endpoint::wait_for(). Returns true if messages may have arrived by it.
  bool wait_for(int peer, bool begin);
  // See Endpoint::begin_call().
  void begin_call(Channel channel, std::uint64_t number, const Label& label) {
    calls_.begin(channel, number, label);
  }
  // Handles an event of epoll_wait.
  void handle(std::uint64_t tag, std::uint32_t events);
  // Handles heartbeats, long-running calls, silent peers, and streams that closed without a
  // goodbye. Called about ten times per second.
  void tick(Clock::time_point now);

  int any(Channel channel, const std::function<bool(int peer)>& may) {
    return mailbox_.any(channel, may);
  }
  // True if the peer has sent a goodbye and all its earlier data was read.
  bool has_left(int peer) const { return peers_[peer].left(); }

  // Stops sending and receiving data. Memory of calls is not touched afterwards.
  void stop();
  // Sends the reason of the failure to the other ranks, as far as the sockets accept it.
  void tell(const Abort& abort);
  // Sends control frames that the sockets have not accepted before.
  void tell_rest();
  // Sends a goodbye, and waits until it is sent or the deadline has passed.
  void leave(Deadline deadline);

 private:
  void deliver_to_self(Outgoing& message);

  const EngineOptions options_;
  Fd epoll_, wake_;
  Mailbox mailbox_;
  Calls calls_;
  std::vector<PeerConnection> peers_;  // by rank
  bool stopped_ = false;
};

}  // namespace weft::net::internal
