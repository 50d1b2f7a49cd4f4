// Counts the zero-copy sends of one TCP connection (MSG_ZEROCOPY): the kernel reads the caller's
// memory until it reports that a send is complete. Counts only; connection.h makes the calls. The
// owner guards it.
//
// After the kernel's Documentation/networking/msg_zerocopy.rst (Linux 4.14): each send with the
// flag that took bytes has the next number, 32 bits wide; the socket's error queue says which
// ranges of numbers the kernel has done with, now and then out of order, and whether it copied them
// all the same (SO_EE_CODE_ZEROCOPY_COPIED: loopback, veth, a packet capture), which costs more
// than a plain send; ENOBUFS says that no more can be under way (net.core.optmem_max, or
// RLIMIT_MEMLOCK without CAP_IPC_LOCK).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "weft/net/tcp/tcp.h"

namespace weft::net::internal {

class ZeroCopySends {
 public:
  // `first`: the number of the first send, for tests.
  explicit ZeroCopySends(ZeroCopy mode = ZeroCopy::kNever, std::uint64_t first = 0)
      : mode_(mode), on_(mode != ZeroCopy::kNever), sent_(first), completed_(first) {}

  // Whether to send without a copy. Under kWhereItHelps false as soon as the kernel has copied a
  // zero-copy send, or has refused kRefusals in a row.
  bool on() const { return on_; }
  ZeroCopy mode() const { return mode_; }

  // A send with the flag took bytes; or the kernel gave ENOBUFS, and the bytes go by a plain send.
  void count_sent();
  void refused();
  // The kernel has done with the sends of these numbers. Throws Error(kInternal) for one that was
  // not made.
  void count_completed(std::uint32_t first, std::uint32_t last, bool copied);

  // Sends so far, and how many of the first of them are all complete.
  std::uint64_t sent() const { return sent_; }
  std::uint64_t completed() const { return completed_; }
  bool outstanding() const { return completed_ != sent_; }

  static constexpr int kRefusals = 8;

 private:
  ZeroCopy mode_;
  bool on_;
  int refusals_ = 0;
  std::uint64_t sent_, completed_;
  // Complete before an earlier one: [first, end).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ahead_;
};

}  // namespace weft::net::internal
