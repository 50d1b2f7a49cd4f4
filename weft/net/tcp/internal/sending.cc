// Sends messages as frames over the streams of a peer.
//
//   small_ ── stream 0 first ─┐      a stream has one data frame at a time; when it is written, the
//   large_ ── any stream ─────┴─►    stream takes the next piece of the first message
//
// So a fast stream takes more pieces than a slow one, and a small message waits for one frame of a
// large one at most. `next` of a message counts the bytes given to streams, `flying` its frames
// that are not done. A message is complete when all bytes are given and no frame is flying. A frame
// is done when it is written; if it was sent without a copy, when the kernel no longer reads it.
//
// All of it runs under the endpoint's mutex. pump() is called when there is something new to send,
// and when a socket can take more.
#include <algorithm>
#include <utility>

#include "weft/net/tcp/internal/peer_connection.h"

namespace weft::net::internal {
namespace {

// Messages up to this size do not wait behind large ones.
constexpr std::size_t kSmall = 32 * 1024;
// Smallest frame that is sent without a copy. Below about 10 KB, zero-copy costs more than a copy.
// Most messages of this size are sent in several pieces.
constexpr std::size_t kMinLent = 64 * 1024;

void landed(Outgoing& message) {
  if (--message.flying == 0 && message.next == message.send.bytes.size())
    message.operation->complete(message.id);
}

}  // namespace

void PeerConnection::send(Outgoing& message) {
  if (goodbye_) lost("it left the group");
  ++message.operation->pending;
  (message.send.bytes.size() <= kSmall ? small_ : large_).push_back(&message);
  for (Stream& stream : streams_) pump(stream);
}

void PeerConnection::pump(Stream& stream) {
  const bool control = is_control(stream);
  while (stream.writable && (control || !stopped_)) {
    if (stream.connection->out().empty() && !(control ? load_control() : load_data(stream))) break;
    std::size_t frames = 0;
    const auto io = stream.connection->flush(frames);
    if (frames > 0) written(stream);
    if (io == Connection::Io::kMoved) continue;
    if (io == Connection::Io::kClosed) {
      stream.writable = false;
      suspect(stream);
    }
    break;
  }
  watch(stream);
}

// Small messages use stream 0, ahead of large ones. Each free stream takes the next piece of a
// large message.
bool PeerConnection::load_data(Stream& stream) {
  auto& queue = &stream == &streams_.front() && !small_.empty() ? small_ : large_;
  if (queue.empty()) return false;
  Outgoing& message = *queue.front();
  const auto bytes = message.send.bytes;
  Header header;
  header.channel = message.channel;
  header.message = message.number;
  header.total = bytes.size();
  header.offset = message.next;
  header.label = label_of(message.send);
  const std::size_t length = std::min(kMaxPayload, bytes.size() - message.next);
  stream.connection->out().push(header, bytes.subspan(message.next, length));
  stream.sending = &message;
  stream.sends_before = stream.connection->zero_copy_sends().sent();
  message.begun = true;
  message.next += length;
  ++message.flying;
  if (message.next == bytes.size()) queue.pop_front();
  if (is_zero_copy(length, bytes.size() - message.next))
    stream.connection->mark_zero_copy(bytes.subspan(message.next - length, length));
  return true;
}

// The last waiting frame of each stream is copied: a zero-copy send with no data after it would
// wait for a delayed acknowledgement.
bool PeerConnection::is_zero_copy(std::size_t frame, std::size_t rest) const {
  const std::size_t behind =
      (rest + kMaxPayload - 1) / kMaxPayload + large_.size() - (rest > 0 ? 1 : 0);
  return frame >= kMinLent && behind >= streams_.size() - 1;
}

bool PeerConnection::load_control() {
  if (control_.empty()) return false;
  const auto& [header, payload] = control_.front();
  streams_.back().connection->out().push(header, payload);
  return true;
}

void PeerConnection::written(Stream& stream) {
  if (is_control(stream)) {
    if (!control_.empty()) control_.pop_front();
    return;
  }
  Outgoing& message = *std::exchange(stream.sending, nullptr);
  const ZeroCopySends& sends = stream.connection->zero_copy_sends();
  stream.connection->mark_zero_copy({});
  // Some sends may be complete before the rest of the frame is written; the kernel would not report
  // them again.
  if (sends.sent() == stream.sends_before || !sends.outstanding()) return landed(message);
  stream.unacknowledged.emplace_back(sends.sent(), &message);
}

// Handles the sends that the kernel has completed. Returns false if there are none.
bool PeerConnection::collect(Stream& stream) {
  if (!stream.connection->collect()) return false;
  for (; !stream.unacknowledged.empty() &&
         stream.unacknowledged.front().first <= stream.connection->zero_copy_sends().completed();
       stream.unacknowledged.pop_front()) {
    landed(*stream.unacknowledged.front().second);
  }
  return true;
}

void PeerConnection::say(const Header& header, std::vector<std::byte> payload) {
  if (streams_.empty() || goodbye_) return;
  control_.emplace_back(header, std::move(payload));
  pump(streams_.back());
}

void PeerConnection::say_rest() {
  if (!control_.empty()) pump(streams_.back());
}

}  // namespace weft::net::internal
