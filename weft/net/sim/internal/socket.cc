#include "weft/net/sim/internal/socket.h"

#include <algorithm>

namespace weft::net::sim::internal {
namespace {

using namespace std::chrono_literals;

constexpr Time kFirstTimeout = 200ms;  // Linux's TCP_RTO_MIN
constexpr Time kLastTimeout = 2s;
// Number of duplicate acknowledgements that indicate a lost segment (RFC 5681).
constexpr int kRepeats = 3;

}  // namespace

Socket::Socket(Network& network, const Options& options, std::function<void()> changed)
    : network_(network), options_(options), changed_(std::move(changed)), timeout_(kFirstTimeout) {}

std::size_t Socket::write(std::span<const std::byte> bytes) {
  if (!writable()) return 0;
  const std::size_t n = std::min(bytes.size(), kBuffer - out_.size());
  if (all_acknowledged()) progress_ = network_.now();
  out_.insert(out_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
  transmit();
  return n;
}

std::size_t Socket::read(std::span<std::byte> bytes) {
  const std::size_t n = std::min(bytes.size(), in_.size());
  const bool was_full = window() < kSegment;
  std::copy_n(in_.begin(), n, bytes.begin());
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(n));
  // The sender waits for window space.
  if (was_full && window() >= kSegment && !broken()) send_ack();
  return n;
}

void Socket::close() {
  if (closed_ || broken()) return;
  if (all_acknowledged()) progress_ = network_.now();
  closed_ = true;
  transmit();
}

void Socket::abandon() {
  abandoned_ = true;
  in_.clear();
  close();
}

void Socket::send_reset() {
  Packet packet{options_.from, options_.to, options_.stream};
  packet.reset = true;
  network_.send(std::move(packet));
}

void Socket::reset() {
  if (broken()) return;
  send_reset();
  break_off("its connection broke: reset");
}

void Socket::break_off(const std::string& cause) {
  if (broken()) return;
  cause_ = cause;
  out_.clear();
  changed_();
}

// Sends new data as far as the window of the other side allows.
void Socket::transmit() {
  const std::uint64_t limit = acknowledged_ + peer_window_;
  while (sent_ < end_of_data() && sent_ < limit) send_segment(sent_);
  if (closed_ && sent_ == end_of_data()) send_segment(sent_);  // only the end of the stream
  arm();
}

void Socket::send_segment(std::uint64_t sequence) {
  Packet packet{options_.from, options_.to, options_.stream, sequence, received_, window()};
  const std::size_t at = sequence - acknowledged_;
  const std::size_t n = at < out_.size() ? std::min(kSegment, out_.size() - at) : 0;
  packet.bytes.assign(out_.begin() + static_cast<std::ptrdiff_t>(at),
                      out_.begin() + static_cast<std::ptrdiff_t>(at + n));
  packet.fin = closed_ && sequence + n == end_of_data();
  if (fin_seen_ && received_ == fin_at_) packet.ack = received_ + 1;
  sent_ = std::max(sent_, sequence + n + (packet.fin ? 1 : 0));
  network_.send(std::move(packet));
}

void Socket::send_ack() {
  const bool ended = fin_seen_ && received_ == fin_at_;
  network_.send(
      {options_.from, options_.to, options_.stream, sent_, received_ + (ended ? 1 : 0), window()});
}

void Socket::arm() {
  if (armed_ || all_acknowledged() || broken()) return;
  armed_ = true;
  network_.after(timeout_, [this, timer = ++timer_] {
    if (timer != timer_) return;
    armed_ = false;
    on_timer();
  });
}

// Sends the oldest segment again, independent of the window; the answer contains the window.
void Socket::on_timer() {
  if (all_acknowledged() || broken()) return;
  if (network_.now() - progress_ >= options_.silence)
    return break_off("its connection broke: no answer");
  ++network_.counts().sent_again;
  timeout_ = std::min(2 * timeout_, kLastTimeout);
  send_segment(acknowledged_);
  arm();
}

void Socket::deliver(Packet& packet) {
  if (packet.reset) return break_off("its connection broke: reset by the other side");
  if (abandoned_ && !packet.bytes.empty()) break_off("nobody reads");
  if (broken()) return send_reset();
  take_ack(packet);
  take_data(packet);
}

void Socket::take_ack(const Packet& packet) {
  if (packet.ack > acknowledged_ && !all_acknowledged()) {
    const std::size_t bytes = std::min<std::uint64_t>(packet.ack - acknowledged_, out_.size());
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(bytes));
    acknowledged_ += bytes;
    fin_acknowledged_ = packet.ack > acknowledged_;
    repeated_acks_ = 0;
    timeout_ = kFirstTimeout;
    progress_ = network_.now();
    ++timer_;  // the timer starts again
    armed_ = false;
  } else if (packet.ack == acknowledged_ && packet.bytes.empty() && sent_ > acknowledged_ &&
             ++repeated_acks_ == kRepeats) {
    ++network_.counts().sent_again;
    send_segment(acknowledged_);
  }
  // Any answer shows that the peer is alive, also one with a window of zero: a slow reader is not
  // lost.
  if (packet.ack == acknowledged_) progress_ = network_.now();
  if (packet.ack >= acknowledged_) peer_window_ = packet.window;
  transmit();
  changed_();
}

void Socket::take_data(Packet& packet) {
  if (packet.fin) {
    fin_seen_ = true;
    fin_at_ = packet.sequence + packet.bytes.size();
  }
  const std::uint64_t limit = received_ + window();
  if (!packet.bytes.empty() && packet.sequence < limit)
    early_.try_emplace(packet.sequence, packet.bytes);
  for (auto next = early_.begin(); next != early_.end() && next->first <= received_;
       next = early_.erase(next)) {
    const std::uint64_t skip = received_ - next->first;
    if (skip >= next->second.size()) continue;
    in_.insert(in_.end(), next->second.begin() + static_cast<std::ptrdiff_t>(skip),
               next->second.end());
    received_ += next->second.size() - skip;
  }
  if (!packet.bytes.empty() || packet.fin) send_ack();
  if (readable()) changed_();
}

}  // namespace weft::net::sim::internal
