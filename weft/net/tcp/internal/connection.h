// One established stream between two ranks: FrameWriter and FrameReader over a non-blocking socket.
// The owner guards it.
//
// Payloads are transferred directly between the socket and the caller's memory. sendmsg gathers
// headers and payloads. readv writes the rest of a payload to its destination, and following bytes
// (headers, small frames) to the reader's staging buffer. A payload may be sent without a copy
// (zero_copy_sends.h): it stays unchanged until the kernel has completed the send, which epoll
// reports as EPOLLERR.
#pragma once

#include <string>

#include "weft/net/tcp/frame_stream.h"
#include "weft/net/tcp/internal/zero_copy_sends.h"
#include "weft/net/tcp/socket.h"

namespace weft::net::internal {

class Connection {
 public:
  enum class Io { kMoved, kBlocked, kClosed };

  Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch);

  int fd() const { return fd_.get(); }

  // Allows zero-copy sends. If the kernel does not support them: Error(kUnavailable) with kAlways,
  // otherwise plain sends.
  void allow_zero_copy(ZeroCopy mode);
  const ZeroCopySends& zero_copy_sends() const { return zero_copy_; }
  // Allows the payload of the single frame in out(), or the rest of it, to be sent without a copy.
  // flush() then increases zero_copy_sends().sent(). The caller may reuse the bytes when
  // zero_copy_sends().completed() has reached that value.
  void mark_zero_copy(std::span<const std::byte> payload) { zero_copy_payload_ = payload; }
  // Reads the kernel's notifications about sends. Returns false if there were none.
  bool collect();
  // Ends the connection with a reset: zero-copy data that has not left this host is dropped.
  void cut();

  FrameWriter& out() { return out_; }
  FrameReader& in() { return in_; }

  // Writes from out(). kMoved: all is written. Adds the number of frames passed to the socket to
  // `frames`.
  Io flush(std::size_t& frames);
  // Reads once. Sets `drained` if the socket has no more data for now.
  Io fill(bool& drained);

  // Reason why the connection was closed.
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
