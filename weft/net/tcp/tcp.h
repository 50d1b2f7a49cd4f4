// Endpoint over TCP, between any hosts. Connections are authenticated by the job's secret, data is
// checked by CRC32C, and each pair of ranks has several streams.
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
  // For frames of at least 64 KiB that are followed by other frames. Stops on a connection once the
  // kernel has copied such a frame.
  kWhereItHelps,
  kNever,
  // For these frames even if the kernel copies them: for tests and measurements. connect_tcp()
  // throws Error(kUnavailable) if the kernel does not support it.
  kAlways,
};

struct TcpOptions {
  int rank = 0;
  int world = 1;
  std::uint32_t epoch = 0;
  std::string job;  // any text; ranks of different jobs reject each other
  // Without a secret, stray connections are kept out, but attackers are not.
  std::optional<std::array<std::byte, 32>> secret;
  // Where to listen: an address, a network (10.0.0.0/8) or the name of an interface. A wildcard
  // needs `secret` and `advertise`.
  std::string interface = "127.0.0.1";
  std::string advertise;  // host that peers connect to; empty: the bound address
  int port = 0;           // 0: a free port
  // Name of the congestion control. Empty: that of the system, but reno instead of bbr for round
  // trips below 1 ms.
  std::string congestion;
  ZeroCopy zero_copy = ZeroCopy::kWhereItHelps;
  int streams = 2;  // data connections per pair, 1 to 16; one more is for control frames
  // Most bytes of a peer that wait for a receive. Beyond it, the peer's data is no longer read,
  // unless this rank waits for another message of the peer.
  std::size_t room = std::size_t{64} << 20;
  std::chrono::milliseconds connect_timeout{30'000};   // for the whole group to be connected
  std::chrono::milliseconds handshake_timeout{5'000};  // for the handshake of one connection
  // A peer that is silent for this long is lost. A closed connection is noticed at once.
  std::chrono::milliseconds peer_timeout{10'000};
  // Time that a waiting thread polls, yielding, before it sleeps. Use 0 with more ranks than cores.
  std::chrono::microseconds spin{200};
  // Sends this rank's "host:port" and returns those of all ranks, by rank. Called once, after the
  // port is bound.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Returns a rank that is known to have ended. The connecting thread calls it about every 50 ms.
  // Empty: no rank is ever known to have ended.
  std::function<std::optional<int>()> lost_peer;
  // Returns ranks that others have found to be lost, although nothing was closed: their host is
  // silent. The background thread calls it ten times per second. Empty: no rank is found lost.
  std::function<std::vector<int>()> found_lost;
  // Receives one line for each rejected connection, at most one per second; optional. Called by the
  // thread in connect_tcp.
  std::function<void(const std::string& line)> on_refused;
};

// Connects all ranks of the group; every rank calls it. Until it returns, a foreign connection to
// the port costs at most 4 KiB and handshake_timeout; then the port is closed. Throws
// kInvalidArgument (options), kUnavailable (address taken, another epoch), kBadConfig (a peer of
// another job, secret or version), kTimeout naming the ranks that did not connect.
//
// Waiting threads make progress themselves. A background thread with 10 wake-ups per second sends
// heartbeats and notices dead peers. A dead peer is kPeerLost on every rank, with the same rank
// number. Any error in exchange() ends the group on every rank. The destructor sends a goodbye and
// waits at most half a second for it to be sent. After fail() with kCorrupt, kInternal or kTimeout,
// the destructor sends that error to the peers, even if the group had failed before: they get
// kAborted naming this rank. abort() sends its error at once.
std::unique_ptr<Endpoint> connect_tcp(const TcpOptions& options);

// One-way digest of a secret of 32 bytes, for a comparison that does not reveal it: 32 hexadecimal
// digits.
std::string secret_digest(const std::string& secret);

}  // namespace weft::net
