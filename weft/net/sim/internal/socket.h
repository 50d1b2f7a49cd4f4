// One end of a simulated TCP connection: a byte stream each way that is complete and in order, or
// breaks; over packets that are neither.
//
// What matters of TCP for whoever sits above it: bounded buffers at both ends, delay by
// retransmission with back-off, an end by close, by reset, or after a time without an answer. No
// congestion control.
#pragma once

#include <map>
#include <span>
#include <string>

#include "weft/net/sim/internal/network.h"

namespace weft::net::sim::internal {

class Socket {
 public:
  struct Options {
    int from = -1;
    int to = -1;
    int stream = 0;
    Time silence{};  // unacknowledged for so long: broken
  };

  // `changed` is called when there is more to read, more room to write, or an end.
  Socket(Network& network, const Options& options, std::function<void()> changed);

  // How many of the bytes the send buffer takes.
  std::size_t write(std::span<const std::byte> bytes);
  // How many bytes are there, at most as many as asked for.
  std::size_t read(std::span<std::byte> bytes);
  // Nothing more will be written; what was is still sent.
  void close();
  // Nobody is here to read any more: what was written is still sent, and whoever sends more is told
  // by a reset.
  void abandon();
  // Ends both ways, at once and on both sides.
  void reset();

  bool readable() const { return !in_.empty() || at_end() || broken(); }
  bool writable() const { return !broken() && !closed_ && out_.size() < kBuffer; }
  // The other side has closed, and all was read.
  bool at_end() const { return in_.empty() && fin_seen_ && received_ == fin_at_; }
  bool broken() const { return !cause_.empty(); }
  const std::string& cause() const { return cause_; }
  // The other side has all that was written, the end included; or nobody will ever have.
  bool all_acknowledged() const {
    return out_.empty() && (!closed_ || fin_acknowledged_ || broken());
  }

  void deliver(Packet& packet);

 private:
  static constexpr std::size_t kBuffer = 64 * 1024;
  static constexpr std::size_t kSegment = 8 * 1024;

  std::uint64_t end_of_data() const { return acknowledged_ + out_.size(); }
  std::uint64_t window() const { return in_.size() >= kBuffer ? 0 : kBuffer - in_.size(); }
  void transmit();
  void send_segment(std::uint64_t sequence);
  void send_ack();
  void send_reset();
  void take_ack(const Packet& packet);
  void take_data(Packet& packet);
  void arm();
  void on_timer();
  void break_off(const std::string& cause);

  Network& network_;
  const Options options_;
  const std::function<void()> changed_;
  std::string cause_;

  // Out. Behind the last byte the end itself takes a number, as in TCP.
  std::vector<std::byte> out_;  // from acknowledged_ on
  std::uint64_t acknowledged_ = 0, sent_ = 0, peer_window_ = kBuffer;
  int repeated_acks_ = 0;
  bool closed_ = false;
  bool fin_acknowledged_ = false;
  bool abandoned_ = false;
  Time timeout_;
  Time progress_{};  // when something was last acknowledged, or began to be waited for
  std::uint64_t timer_ = 0;
  bool armed_ = false;

  // In.
  std::vector<std::byte> in_;
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> early_;
  bool fin_seen_ = false;
  std::uint64_t fin_at_ = 0;
};

}  // namespace weft::net::sim::internal
