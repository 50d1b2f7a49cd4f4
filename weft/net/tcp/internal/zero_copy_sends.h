// Counts the zero-copy sends of one TCP connection (MSG_ZEROCOPY): the kernel reads the caller's
// memory until it reports that a send is complete. Counts only; connection.h makes the calls. The
// owner guards it.
//
// After the kernel's Documentation/networking/msg_zerocopy.rst (Linux 4.14): each send with the
// flag that accepts bytes gets the next number, of 32 bits. The socket's error queue reports ranges
// of completed numbers, sometimes out of order. It also reports if the kernel copied the data
// nevertheless (SO_EE_CODE_ZEROCOPY_COPIED: loopback, veth, a packet capture), which costs more
// than a plain send. ENOBUFS means that no more sends can be pending (net.core.optmem_max, or
// RLIMIT_MEMLOCK without CAP_IPC_LOCK).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "weft/net/tcp/tcp.h"

namespace weft::net::internal {

class ZeroCopySends {
 public:
  // `first`: number of the first send, for tests.
  explicit ZeroCopySends(ZeroCopy mode = ZeroCopy::kNever, std::uint64_t first = 0)
      : mode_(mode), on_(mode != ZeroCopy::kNever), sent_(first), completed_(first) {}

  // True to send without a copy. With kWhereItHelps, false after the kernel has copied a zero-copy
  // send or rejected kRefusals in a row.
  bool on() const { return on_; }
  ZeroCopy mode() const { return mode_; }

  // Counts a send with the flag, or an ENOBUFS (the bytes are then sent by a plain send).
  void count_sent();
  void refused();
  // Marks the sends with these numbers as complete. Throws Error(kInternal) for one that was not
  // made.
  void count_completed(std::uint32_t first, std::uint32_t last, bool copied);

  // Number of sends so far, and number of sends completed without a gap.
  std::uint64_t sent() const { return sent_; }
  std::uint64_t completed() const { return completed_; }
  bool outstanding() const { return completed_ != sent_; }

  static constexpr int kRefusals = 8;

 private:
  ZeroCopy mode_;
  bool on_;
  int refusals_ = 0;
  std::uint64_t sent_, completed_;
  // Sends that completed before an earlier one: [first, end).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ahead_;
};

}  // namespace weft::net::internal
