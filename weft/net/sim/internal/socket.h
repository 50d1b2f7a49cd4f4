// One end of a simulated TCP connection over unreliable packets: a byte stream in each direction
// that is complete and in order, or breaks.
//
// Models the parts of TCP that matter to upper layers: bounded buffers, delay by retransmission
// with back-off, and an end by close, by reset, or after a time without an answer. No congestion
// control.
#pragma once

#include <span>
#include <string>

#include "weft/net/sim/internal/stream_buffers.h"

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
  bool writable() const { return !broken() && out_.has_room(); }
  // True if the other side has closed and all data was read.
  bool at_end() const { return in_.at_end(); }
  bool broken() const { return !cause_.empty(); }
  const std::string& cause() const { return cause_; }
  // True if the other side has received all data and the end, or never will.
  bool all_acknowledged() const { return broken() || out_.all_acknowledged(); }

  void deliver(Packet& packet);

 private:
  void transmit();
  void send_segment(std::uint64_t sequence);
  void send_ack();
  void send_reset();
  void take_ack(const Packet& packet);
  void take_data(const Packet& packet);
  void arm();
  void on_timer();
  void break_off(const std::string& cause);

  Network& network_;
  const Options options_;
  const std::function<void()> changed_;
  std::string cause_;
  SendBuffer out_;
  ReceiveBuffer in_;
  bool abandoned_ = false;

  // Retransmission.
  Time timeout_;
  Time progress_{};  // time of the last acknowledgement, or of the start of the wait for one
  std::uint64_t timer_ = 0;
  bool armed_ = false;
};

}  // namespace weft::net::sim::internal
