#include "weft/net/sim/internal/stream_buffers.h"

#include <algorithm>

namespace weft::net::sim::internal {
namespace {

// Number of duplicate acknowledgements that indicate a lost segment (RFC 5681).
constexpr int kRepeats = 3;

}  // namespace

std::size_t SendBuffer::write(std::span<const std::byte> bytes) {
  const std::size_t n = std::min(bytes.size(), kBuffer - bytes_.size());
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

bool SendBuffer::has_new() const {
  if (sent_ == end_of_data()) return closed_;  // only the end of the stream
  return sent_ < end_of_data() && sent_ < acknowledged_ + peer_window_;
}

void SendBuffer::fill(Packet& packet) {
  const std::size_t at = packet.sequence - acknowledged_;
  const std::size_t n = at < bytes_.size() ? std::min(kSegment, bytes_.size() - at) : 0;
  packet.bytes.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                      bytes_.begin() + static_cast<std::ptrdiff_t>(at + n));
  packet.fin = closed_ && packet.sequence + n == end_of_data();
  sent_ = std::max(sent_, packet.sequence + n + (packet.fin ? 1 : 0));
}

SendBuffer::Ack SendBuffer::acknowledge(const Packet& packet) {
  Ack ack = Ack::kNothing;
  if (packet.ack > acknowledged_ && !all_acknowledged()) {
    const std::size_t bytes = std::min<std::uint64_t>(packet.ack - acknowledged_, bytes_.size());
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(bytes));
    acknowledged_ += bytes;
    fin_acknowledged_ = packet.ack > acknowledged_;
    repeated_acks_ = 0;
    ack = Ack::kNew;
  } else if (packet.ack == acknowledged_ && packet.bytes.empty() && sent_ > acknowledged_ &&
             ++repeated_acks_ == kRepeats) {
    ack = Ack::kLost;
  }
  if (packet.ack >= acknowledged_) peer_window_ = packet.window;
  return ack;
}

std::size_t ReceiveBuffer::read(std::span<std::byte> bytes) {
  const std::size_t n = std::min(bytes.size(), bytes_.size());
  std::copy_n(bytes_.begin(), n, bytes.begin());
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

void ReceiveBuffer::take(const Packet& packet) {
  if (packet.fin) {
    fin_seen_ = true;
    fin_at_ = packet.sequence + packet.bytes.size();
  }
  if (!packet.bytes.empty() && packet.sequence < received_ + window())
    early_.try_emplace(packet.sequence, packet.bytes);
  for (auto next = early_.begin(); next != early_.end() && next->first <= received_;
       next = early_.erase(next)) {
    const std::uint64_t skip = received_ - next->first;
    if (skip >= next->second.size()) continue;
    bytes_.insert(bytes_.end(), next->second.begin() + static_cast<std::ptrdiff_t>(skip),
                  next->second.end());
    received_ += next->second.size() - skip;
  }
}

}  // namespace weft::net::sim::internal
