// One end of a simulated TCP connection over unreliable packets: a byte stream in each direction
// that is complete and in order, or breaks.
//
// Models the parts of TCP that matter to upper layers: bounded buffers, delay by retransmission
// with back-off, and an end by close, by reset, or after a time without an answer. No congestion
// control.
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
    Time silence{};  // the connection breaks after this time without an acknowledgement
  };

  // Calls `changed` when there is more to read, more room to write, or an end.
  Socket(Network& network, const Options& options, std::function<void()> changed);

  // Writes to the send buffer. Returns the number of bytes accepted.
  std::size_t write(std::span<const std::byte> bytes);
  // Reads available bytes. Returns their number.
  std::size_t read(std::span<std::byte> bytes);
  // Closes the sending direction. Data written before is still sent.
  void close();
  // Stops reading. Data written before is still sent, and a peer that sends more gets a reset.
  void abandon();
  // Resets the connection, immediately on both sides.
  void reset();

  bool readable() const { return !in_.empty() || at_end() || broken(); }
  bool writable() const { return !broken() && !closed_ && out_.size() < kBuffer; }
  // True if the other side has closed and all data was read.
  bool at_end() const { return in_.empty() && fin_seen_ && received_ == fin_at_; }
  bool broken() const { return !cause_.empty(); }
  const std::string& cause() const { return cause_; }
  // True if the other side has received all data and the end, or never will.
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

  // Outgoing. The end of the stream takes a sequence number after the last byte, as in TCP.
  std::vector<std::byte> out_;  // data from acknowledged_ on
  std::uint64_t acknowledged_ = 0, sent_ = 0, peer_window_ = kBuffer;
  int repeated_acks_ = 0;
  bool closed_ = false;
  bool fin_acknowledged_ = false;
  bool abandoned_ = false;
  Time timeout_;
  Time progress_{};  // time of the last acknowledgement, or of the start of the wait for one
  std::uint64_t timer_ = 0;
  bool armed_ = false;

  // Incoming.
  std::vector<std::byte> in_;
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> early_;
  bool fin_seen_ = false;
  std::uint64_t fin_at_ = 0;
};

}  // namespace weft::net::sim::internal
