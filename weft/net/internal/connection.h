// One established stream between two ranks: frames in, frames out, over a non-blocking socket. The owner guards it.
//
// Payloads go straight between the socket and the caller's memory: sendmsg gathers header and payload, readv scatters the rest of a payload
// into its place and what follows (the next headers, small frames) into a staging buffer.
#pragma once

#include <memory>
#include <string>

#include "weft/net/internal/frame.h"
#include "weft/net/internal/socket.h"

namespace weft::net::internal {

class Connection {
 public:
  enum class Input { kNeedBytes, kHeader, kFrame };
  enum class Io { kMoved, kBlocked, kClosed };

  Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch);

  int fd() const { return fd_.get(); }

  // Out. One frame at a time; `payload` stays where it is until flush() gives kMoved.
  bool sending() const { return sending_; }
  void load(Header header, std::span<const std::byte> payload);
  // kMoved: the frame is in the socket's hands.
  Io flush();

  // In. take() works off what was read: kHeader when a frame begins (again and again until place() says where its payload goes), kFrame
  // when its payload is complete. Throws Error(kCorrupt) for a bad checksum, a gap in the sequence, or another epoch.
  Input take();
  const Header& header() const { return in_; }
  void place(std::byte* at);
  // Reads once. `drained` says that the socket has no more for now.
  Io fill(bool& drained);
  // True between a header and the end of its payload, or within a header.
  bool mid_frame() const { return state_ != State::kHead || begin_ != end_; }

  // Why the connection closed.
  const std::string& cause() const { return cause_; }

 private:
  enum class State { kHead, kHeld, kBody };
  static constexpr std::size_t kStaging = 16 * 1024;

  Io closed(int error);
  void absorb(std::size_t bytes);
  void check_header() const;

  Fd fd_;
  std::uint16_t stream_;
  std::uint32_t epoch_;
  std::string cause_;

  bool sending_ = false;
  HeaderBytes out_{};
  std::size_t sent_ = 0;
  std::span<const std::byte> payload_;
  std::uint64_t send_sequence_ = 0;

  State state_ = State::kHead;
  Header in_;
  std::byte* at_ = nullptr;
  std::size_t got_ = 0;
  std::uint32_t crc_ = 0;
  std::uint64_t receive_sequence_ = 0;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace weft::net::internal
