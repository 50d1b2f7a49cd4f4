// One established stream between two ranks: FrameWriter and FrameReader over a non-blocking socket. The owner guards it.
//
// Payloads go straight between the socket and the caller's memory: sendmsg gathers headers and payloads, readv scatters the rest of a
// payload into its place and what follows (the next headers, small frames) into the reader's staging buffer.
#pragma once

#include <string>

#include "weft/net/internal/framing.h"
#include "weft/net/internal/socket.h"

namespace weft::net::internal {

class Connection {
 public:
  enum class Io { kMoved, kBlocked, kClosed };

  Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch);

  int fd() const { return fd_.get(); }

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

  Fd fd_;
  FrameWriter out_;
  FrameReader in_;
  std::string cause_;
};

}  // namespace weft::net::internal
