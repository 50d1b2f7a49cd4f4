// Messages over a connected socket, with the frames of net/tcp (checksums, sequence numbers). For
// programs that serve many clients, such as the store and the parameter server. Never blocks.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/net/tcp/frame_stream.h"

namespace weft::net::internal {

class MessageStream {
 public:
  // `fd`: non-blocking. A received message has at most `max_message` bytes.
  MessageStream(UniqueFd fd, std::size_t max_message);
  MessageStream(MessageStream&&) = default;
  MessageStream& operator=(MessageStream&&) = default;

  int fd() const { return fd_.get(); }

  // Queues a message; flush() writes it.
  void send(std::string message) { send(std::move(message), std::string()); }
  // One message of two parts.
  void send(std::string head, std::string body);
  // The same without a copy: `body` must stay as it is while queued() is above 0 and this exists.
  void send_in_place(std::string head, std::span<const std::byte> body);
  // Bytes of messages that are not written yet.
  std::size_t queued() const { return queued_; }

  // Writes as much as the socket takes. Returns false if the connection has ended.
  bool flush();
  // Reads what has arrived and appends complete messages. Returns false if the connection has
  // ended. Throws Error(kCorrupt) for bytes that no MessageStream sends. Memory grows with the
  // bytes received, not with the length that a peer claims.
  bool receive(std::vector<std::string>& messages);
  // Memory for the next large message: that of a received one, or of a body that is written.
  void give_spare(std::string memory);
  std::string take_spare() { return std::exchange(spare_, {}); }

 private:
  struct Outgoing {
    std::string head, body;
    std::size_t bytes = 0;
    std::size_t frames = 0;  // not completely written
  };

  void queue(Outgoing& out, std::span<const std::byte> body);
  void begin_frame();
  void take_frames(std::vector<std::string>& messages);

  UniqueFd fd_;
  std::size_t max_message_;
  FrameWriter out_;
  FrameReader in_;
  std::deque<Outgoing> outgoing_;
  std::size_t queued_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;  // messages
  std::string partial_;                    // its first have_ bytes have arrived
  std::size_t have_ = 0;
  std::string spare_;
};

}  // namespace weft::net::internal
