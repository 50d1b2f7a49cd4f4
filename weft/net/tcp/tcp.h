// Endpoint over TCP, between any hosts: authenticated by the job's secret, checked by CRC32C, with
// several streams per pair of ranks.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net {

// Use of zero-copy sends for large messages (MSG_ZEROCOPY;
// Documentation/networking/msg_zerocopy.rst of Linux). Such a message is complete when the peer's
// kernel has acknowledged it.
enum class ZeroCopy {
  // for frames of at least 64 KiB with other frames behind them; stops on a connection once the
  // kernel has copied one
  kWhereItHelps,
  kNever,
  // for such frames even if the kernel copies: for tests and measurements. Error(kUnavailable) if
  // the kernel does not support it
  kAlways,
};

struct TcpOptions {
  int rank = 0;
  int world = 1;
  std::uint32_t epoch = 0;
  std::string job;  // any text; ranks of different jobs reject each other
  // Without a secret, stray connections are kept out, but attackers are not.
  std::optional<std::array<std::byte, 32>> secret;
  std::string interface =
      // an address, a network (10.0.0.0/8) or an interface's name; a wildcard needs `secret` and
      // `advertise`
      "127.0.0.1";
  std::string advertise;  // the host that peers connect to; empty: the address that is bound
  int port = 0;           // 0: any that is free
  // congestion control, by name; empty: the system's, but reno instead of bbr between hosts less
  // than 1 ms apart
  std::string congestion;
  ZeroCopy zero_copy = ZeroCopy::kWhereItHelps;
  int streams = 2;  // data connections per pair, 1 to 16; one more is for control frames
  std::size_t room =
      std::size_t{64}
      << 20;  // bytes of a peer that may wait for a receive before its data is no longer read
  std::chrono::milliseconds connect_timeout{30'000};   // for the whole group to be connected
  std::chrono::milliseconds handshake_timeout{5'000};  // for the handshake of one connection
  std::chrono::milliseconds peer_timeout{
      // a peer that is silent for this long is lost (a closed connection is noticed at once)
      10'000};
  std::chrono::microseconds spin{
      200};  // a waiting thread polls, yielding, before it sleeps; 0 with more ranks than cores
  // Sends this rank's "host:port" and returns those of all ranks, by rank. Called once, after the
  // port is bound.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Returns a rank that is known to have ended. The connecting thread calls it about every 50 ms.
  // Empty: no rank is ever known to have ended.
  std::function<std::optional<int>()> lost_peer;
  // Receives one line for each rejected connection, at most one per second; optional. Called by the
  // thread in connect_tcp.
  std::function<void(const std::string& line)> on_refused;
};

// Connects all ranks of the group; every rank calls it. Until it returns, strangers on the port
// cost at most 4 KiB and handshake_timeout each; then the port is closed. Throws kInvalidArgument
// (options), kUnavailable (address taken, another epoch), kBadConfig (a peer of another job, secret
// or version), kTimeout naming the ranks that did not come.
//
// Waiting threads make progress themselves. A background thread with 10 wake-ups per second sends
// heartbeats and notices dead peers. A dead peer is kPeerLost on every rank, with the same rank
// number. Any error in exchange() ends the group on every rank. The destructor sends a goodbye and
// waits at most half a second for it to be sent. After fail() with kCorrupt, kInternal or kTimeout,
// the destructor sends that error to the peers, even if the group had failed before: they get
// kAborted naming this rank.
std::unique_ptr<Endpoint> connect_tcp(const TcpOptions& options);

}  // namespace weft::net
