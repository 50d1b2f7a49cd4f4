// Messages over a connected socket, with the frames of net/tcp (checksums, sequence numbers): of
// store processes to each other, and of clients to their store process. Never blocks.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/net/tcp/framing.h"

namespace weft::store::internal {

class MessageStream {
 public:
  // `fd`: non-blocking. A received message has at most `max_message` bytes.
  MessageStream(UniqueFd fd, std::size_t max_message);
  MessageStream(MessageStream&&) = default;
  MessageStream& operator=(MessageStream&&) = default;

  int fd() const { return fd_.get(); }

  // Queues a message; flush() writes it.
  void send(std::string message);
  // Bytes of messages that are not written yet.
  std::size_t queued() const { return queued_; }

  // Writes as much as the socket takes. Returns false if the connection has ended.
  bool flush();
  // Reads what has arrived and appends complete messages. Returns false if the connection has
  // ended. Throws Error(kCorrupt) for bytes that no MessageStream sends. Memory grows with the
  // bytes received, not with the length that a peer claims.
  bool receive(std::vector<std::string>& messages);

 private:
  struct Outgoing {
    std::string bytes;
    std::size_t frames;  // not completely written
  };

  void begin_frame();
  void take_frames(std::vector<std::string>& messages);

  UniqueFd fd_;
  std::size_t max_message_;
  net::internal::FrameWriter out_;
  net::internal::FrameReader in_;
  std::deque<Outgoing> outgoing_;
  std::size_t queued_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;  // messages
  std::string partial_;
};

}  // namespace weft::store::internal
