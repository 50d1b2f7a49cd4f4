// The two directions of a simulated connection: bytes with sequence numbers, as in TCP. Pure: no
// network and no time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "weft/net/sim/internal/network.h"

namespace weft::net::sim::internal {

inline constexpr std::size_t kBuffer = 64 * 1024;
inline constexpr std::size_t kSegment = 8 * 1024;

// Bytes that were written and not yet acknowledged. The end of the stream takes a sequence number
// after the last byte.
class SendBuffer {
 public:
  // Appends as many bytes as there is room for. Returns their number.
  std::size_t write(std::span<const std::byte> bytes);
  void close() { closed_ = true; }
  void clear() { bytes_.clear(); }

  bool closed() const { return closed_; }
  bool has_room() const { return !closed_ && bytes_.size() < kBuffer; }
  // True if the other side has received all data, and the end if there is one.
  bool all_acknowledged() const { return bytes_.empty() && (!closed_ || fin_acknowledged_); }
  std::uint64_t acknowledged() const { return acknowledged_; }
  std::uint64_t sent() const { return sent_; }
  // True if there is something after sent() that the window of the other side allows.
  bool has_new() const;

  // Puts the segment that begins at packet.sequence into the packet: its data and its end.
  void fill(Packet& packet);

  enum class Ack { kNothing, kNew, kLost };  // kLost: the oldest segment must be sent again
  // Takes the other side's acknowledgement and window.
  Ack acknowledge(const Packet& packet);

 private:
  std::uint64_t end_of_data() const { return acknowledged_ + bytes_.size(); }

  std::vector<std::byte> bytes_;  // data from acknowledged_ on
  std::uint64_t acknowledged_ = 0, sent_ = 0, peer_window_ = kBuffer;
  int repeated_acks_ = 0;
  bool closed_ = false;
  bool fin_acknowledged_ = false;
};

// Bytes that have arrived and were not read yet: in order, or too early.
class ReceiveBuffer {
 public:
  std::size_t read(std::span<std::byte> bytes);
  void clear() { bytes_.clear(); }
  // Takes data and the end of the stream.
  void take(const Packet& packet);

  bool empty() const { return bytes_.empty(); }
  // True if the other side has closed and all data has arrived, or was also read.
  bool ended() const { return fin_seen_ && received_ == fin_at_; }
  bool at_end() const { return empty() && ended(); }
  std::uint64_t window() const { return bytes_.size() >= kBuffer ? 0 : kBuffer - bytes_.size(); }
  // The next sequence number that is expected.
  std::uint64_t ack() const { return received_ + (ended() ? 1 : 0); }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> early_;
  bool fin_seen_ = false;
  std::uint64_t fin_at_ = 0;
};

}  // namespace weft::net::sim::internal
