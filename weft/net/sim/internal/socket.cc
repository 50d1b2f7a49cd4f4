#include "weft/net/sim/internal/socket.h"

#include <algorithm>

namespace weft::net::sim::internal {
namespace {

using namespace std::chrono_literals;

constexpr Time kFirstTimeout = 200ms;  // Linux's TCP_RTO_MIN
constexpr Time kLastTimeout = 2s;

}  // namespace

Socket::Socket(Network& network, const Options& options, std::function<void()> changed)
    : network_(network), options_(options), changed_(std::move(changed)), timeout_(kFirstTimeout) {}

std::size_t Socket::write(std::span<const std::byte> bytes) {
  if (!writable()) return 0;
  if (all_acknowledged()) progress_ = network_.now();
  const std::size_t n = out_.write(bytes);
  transmit();
  return n;
}

std::size_t Socket::read(std::span<std::byte> bytes) {
  const bool was_full = in_.window() < kSegment;
  const std::size_t n = in_.read(bytes);
  // The sender waits for window space.
  if (was_full && in_.window() >= kSegment && !broken()) send_ack();
  return n;
}

void Socket::close() {
  if (out_.closed() || broken()) return;
  if (all_acknowledged()) progress_ = network_.now();
  out_.close();
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
  while (out_.has_new()) send_segment(out_.sent());
  arm();
}

void Socket::send_segment(std::uint64_t sequence) {
  Packet packet{options_.from, options_.to, options_.stream, sequence, in_.ack(), in_.window()};
  out_.fill(packet);
  network_.send(std::move(packet));
}

void Socket::send_ack() {
  network_.send(
      {options_.from, options_.to, options_.stream, out_.sent(), in_.ack(), in_.window()});
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
  send_segment(out_.acknowledged());
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
  switch (out_.acknowledge(packet)) {
    case SendBuffer::Ack::kNew:
      timeout_ = kFirstTimeout;
      progress_ = network_.now();
      ++timer_;  // the timer starts again
      armed_ = false;
      break;
    case SendBuffer::Ack::kLost:
      ++network_.counts().sent_again;
      send_segment(out_.acknowledged());
      break;
    case SendBuffer::Ack::kNothing: break;
  }
  // Any answer shows that the peer is alive, also one with a window of zero: a slow reader is not
  // lost.
  if (packet.ack == out_.acknowledged()) progress_ = network_.now();
  transmit();
  changed_();
}

void Socket::take_data(const Packet& packet) {
  in_.take(packet);
  if (!packet.bytes.empty() || packet.fin) send_ack();
  if (readable()) changed_();
}

}  // namespace weft::net::sim::internal
