// One established stream between two ranks: FrameWriter and FrameReader over a non-blocking socket.
// The owner guards it.
//
// Payloads go straight between the socket and the caller's memory: sendmsg gathers headers and
// payloads, readv scatters the rest of a payload into its place and what follows (the next headers,
// small frames) into the reader's staging buffer. A payload may be sent without a copy
// (zero_copy_sends.h): it stays unchanged until the kernel has completed the send, which epoll
// reports as EPOLLERR.
#pragma once

#include <string>

#include "weft/net/tcp/framing.h"
#include "weft/net/tcp/internal/socket.h"
#include "weft/net/tcp/internal/zero_copy_sends.h"

namespace weft::net::internal {

class Connection {
 public:
  enum class Io { kMoved, kBlocked, kClosed };

  Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch);

  int fd() const { return fd_.get(); }

  // Allows zero-copy sends. Where the kernel has none: Error(kUnavailable) under kAlways, plain
  // sends otherwise.
  void allow_zero_copy(ZeroCopy mode);
  const ZeroCopySends& zero_copy_sends() const { return zero_copy_; }
  // The payload of the one frame that out() has may be sent without a copy, as a whole or what is
  // left of it. zero_copy_sends().sent() grows by that in flush(); the bytes are the caller's again
  // when zero_copy_sends().completed() has come so far.
  void mark_zero_copy(std::span<const std::byte> payload) { zero_copy_payload_ = payload; }
  // Reads what the kernel says of sends; false where it said nothing.
  bool collect();
  // Ends the connection with a reset: what was sent without a copy and has not left this host is
  // dropped.
  void cut();

  FrameWriter& out() { return out_; }
  FrameReader& in() { return in_; }

  // Writes all that out() has: kMoved. `frames` grows by those that are in the socket's hands.
  Io flush(std::size_t& frames);
  // Reads once. `drained` says that the socket has no more for now.
  Io fill(bool& drained);

  // Why the connection closed.
  const std::string& cause() const { return cause_; }

 private:
  Io closed(int error);
  int take_turn(std::span<const std::span<const std::byte>> parts, std::size_t& count) const;
  bool is_zero_copy(std::span<const std::byte> part) const;

  Fd fd_;
  FrameWriter out_;
  FrameReader in_;
  ZeroCopySends zero_copy_;
  std::span<const std::byte> zero_copy_payload_;
  std::string cause_;
};

}  // namespace weft::net::internal
