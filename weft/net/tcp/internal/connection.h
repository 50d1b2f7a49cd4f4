// One established stream between two ranks: FrameWriter and FrameReader over a non-blocking socket. The owner guards it.
//
// Payloads go straight between the socket and the caller's memory: sendmsg gathers headers and payloads, readv scatters the rest of a
// payload into its place and what follows (the next headers, small frames) into the reader's staging buffer. A payload may be lent to the
// kernel (loans.h): it then stays as it is until the loan is returned, which epoll reports as EPOLLERR.
#pragma once

#include <string>

#include "weft/net/tcp/framing.h"
#include "weft/net/tcp/internal/loans.h"
#include "weft/net/tcp/internal/socket.h"

namespace weft::net::internal {

class Connection {
 public:
  enum class Io { kMoved, kBlocked, kClosed };

  Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch);

  int fd() const { return fd_.get(); }

  // Allows loans. Where the kernel has none: Error(kUnavailable) under kAlways, else nothing is ever lent.
  void allow_loans(ZeroCopy mode);
  const Loans& loans() const { return loans_; }
  // The payload of the one frame that out() has may be lent, as a whole or what is left of it. loans().made() grows by that in flush(); the
  // bytes are the caller's again when loans().ended() has come so far.
  void lend(std::span<const std::byte> payload) { lendable_ = payload; }
  // Reads what the kernel says of loans; false where it said nothing.
  bool collect();
  // Ends the connection with a reset: what was lent and has not left this host is dropped.
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
  bool lends(std::span<const std::byte> part) const;

  Fd fd_;
  FrameWriter out_;
  FrameReader in_;
  Loans loans_;
  std::span<const std::byte> lendable_;
  std::string cause_;
};

}  // namespace weft::net::internal
