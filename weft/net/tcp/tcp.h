// Ranks anywhere that TCP reaches: authenticated by the job's secret, checked by CRC32C, several
// streams a pair.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net {

// Whether the kernel sends large messages from the caller's memory (MSG_ZEROCOPY;
// Documentation/networking/msg_zerocopy.rst of Linux) instead of copying them. Such a message is
// complete when the peer's kernel has acknowledged it.
enum class ZeroCopy {
  // frames of 64 KiB or more that others wait behind; never again on a connection where the kernel
  // copied one all the same
  kWhereItHelps,
  kNever,
  // such frames also where it copies: to test and measure. Error(kUnavailable) where the kernel
  // cannot
  kAlways,
};

struct TcpOptions {
  int rank = 0;
  int world = 1;
  std::uint32_t epoch = 0;
  std::string job;  // any text; ranks of different jobs refuse each other
  // Without it strays are kept out, attackers are not.
  std::optional<std::array<std::byte, 32>> secret;
  std::string interface =
      // an address, a network (10.0.0.0/8) or an interface's name; a wildcard needs `secret` and
      // `advertise`
      "127.0.0.1";
  std::string advertise;  // the host that peers connect to; empty: the address that is bound
  int port = 0;           // 0: any that is free
  // control, by name; empty: the system's, but reno for bbr between hosts less than 1 ms apart
  std::string congestion;
  ZeroCopy zero_copy = ZeroCopy::kWhereItHelps;
  int streams = 2;  // data connections a pair, 1 to 16; one more carries control frames
  std::size_t room =
      std::size_t{64}
      << 20;  // bytes of a peer that wait for a receive before its data is no longer read
  std::chrono::milliseconds connect_timeout{30'000};   // for the whole group to be connected
  std::chrono::milliseconds handshake_timeout{5'000};  // for one connection to prove itself
  std::chrono::milliseconds peer_timeout{
      // a peer that is silent for so long is lost (a closed connection is noticed at once)
      10'000};
  std::chrono::microseconds spin{
      200};  // a waiting thread polls, yielding, before it sleeps; 0 with more ranks than cores
  // Gives everybody's "host:port", by rank, in exchange for mine. Called once, after the port is
  // bound.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Gives a rank known to have ended. Asked about every 50 ms while the group connects, by that
  // thread; empty: nobody is ever known to have.
  std::function<std::optional<int>()> lost_peer;
  // One line for each connection that was refused, at most one a second; optional. Called by the
  // thread in connect_tcp.
  std::function<void(const std::string& line)> on_refused;
};

// Connects all ranks of the group; every rank calls it. Until it returns, strangers on the port
// cost at most 4 KiB and handshake_timeout each; then the port is closed. Throws kInvalidArgument
// (options), kUnavailable (address taken, another epoch), kBadConfig (a peer of another job, secret
// or version), kTimeout naming the ranks that did not come.
//
// The thread that waits makes the progress itself; a background thread of 10 wake-ups a second
// keeps heartbeats and notices deaths. A peer that dies is kPeerLost on every rank, with the same
// culprit; any error in exchange() ends the group on every rank. The destructor says goodbye and
// waits at most half a second for it to be on its way. After fail() with kCorrupt, kInternal or
// kTimeout it tells the peers that error, also where the group had failed before: they get kAborted
// naming this rank.
std::unique_ptr<Endpoint> connect_tcp(const TcpOptions& options);

}  // namespace weft::net
