// Sends messages as frames over the streams of a peer.
#include <algorithm>
#include <cstring>

#include "weft/net/tcp/internal/engine.h"

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

void Engine::send(Outgoing& message) {
  Peer& to = peers_[message.send.peer];
  message.number = to.sent[message.channel]++;
  if (message.send.peer != options_.rank && to.goodbye)
    lost(message.send.peer, "it left the group");
  ++message.operation->pending;
  if (message.send.peer == options_.rank) return deliver_to_self(message);
  (message.send.bytes.size() <= kSmall ? to.small : to.large).push_back(&message);
  pump(message.send.peer);
}

void Engine::deliver_to_self(Outgoing& message) {
  const auto bytes = message.send.bytes;
  const Piece piece{options_.rank, message.channel,       message.number, bytes.size(), 0,
                    bytes.size(),  label_of(message.send)};
  std::byte* place = mailbox_.begin(piece);
  if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
  mailbox_.end(piece);
  message.begun = true;
  message.next = bytes.size();
  message.operation->complete(message.id);
}

void Engine::pump(int peer) {
  for (std::size_t i = 0; i < peers_[peer].streams.size(); ++i) pump_stream(peer, i);
}

void Engine::pump_stream(int peer, std::size_t index) {
  Peer& to = peers_[peer];
  Stream& stream = to.streams[index];
  const bool control = is_control(to, index);
  while (stream.writable && (control || !stopped_)) {
    if (stream.connection->out().empty() && !(control ? load_control(to) : load_data(to, index)))
      break;
    std::size_t frames = 0;
    const auto io = stream.connection->flush(frames);
    if (frames > 0) written(to, index);
    if (io == Connection::Io::kMoved) continue;
    if (io == Connection::Io::kClosed) {
      stream.writable = false;  // earlier data of the peer may still contain the reason
      if (!to.goodbye) suspect(to, stream.connection->cause());
    }
    break;
  }
  watch(peer, index);
}

// Small messages use stream 0, ahead of large ones. Each free stream takes the next piece of a
// large message.
bool Engine::load_data(Peer& peer, std::size_t index) {
  auto& queue = index == 0 && !peer.small.empty() ? peer.small : peer.large;
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
  Stream& stream = peer.streams[index];
  stream.connection->out().push(header, bytes.subspan(message.next, length));
  stream.sending = &message;
  stream.sends_before = stream.connection->zero_copy_sends().sent();
  message.begun = true;
  message.next += length;
  ++message.flying;
  if (message.next == bytes.size()) queue.pop_front();
  if (is_zero_copy(peer, length, bytes.size() - message.next))
    stream.connection->mark_zero_copy(bytes.subspan(message.next - length, length));
  return true;
}

// The last waiting frame of each stream is copied: a zero-copy send with no data after it would
// wait for a delayed acknowledgement.
bool Engine::is_zero_copy(const Peer& peer, std::size_t frame, std::size_t rest) {
  const std::size_t behind =
      (rest + kMaxPayload - 1) / kMaxPayload + peer.large.size() - (rest > 0 ? 1 : 0);
  return frame >= kMinLent && behind >= peer.streams.size() - 1;
}

bool Engine::load_control(Peer& peer) {
  if (peer.control.empty()) return false;
  const auto& [header, payload] = peer.control.front();
  peer.streams.back().connection->out().push(header, payload);
  return true;
}

void Engine::written(Peer& peer, std::size_t index) {
  if (is_control(peer, index)) {
    if (!peer.control.empty()) peer.control.pop_front();
    return;
  }
  Stream& stream = peer.streams[index];
  Outgoing& message = *std::exchange(stream.sending, nullptr);
  const ZeroCopySends& sends = stream.connection->zero_copy_sends();
  stream.connection->mark_zero_copy({});
  // Some sends may be complete before the rest of the frame is written; the kernel would not report
  // them again.
  if (sends.sent() == stream.sends_before || !sends.outstanding()) return landed(message);
  stream.unacknowledged.emplace_back(sends.sent(), &message);
}

// Handles the sends that the kernel has completed. Returns false if there are none.
bool Engine::collect(Stream& stream) {
  if (!stream.connection->collect()) return false;
  for (; !stream.unacknowledged.empty() &&
         stream.unacknowledged.front().first <= stream.connection->zero_copy_sends().completed();
       stream.unacknowledged.pop_front()) {
    landed(*stream.unacknowledged.front().second);
  }
  return true;
}

void Engine::push_control(int peer, const Header& header, std::vector<std::byte> payload) {
  Peer& to = peers_[peer];
  if (to.streams.empty() || to.goodbye) return;
  to.control.emplace_back(header, std::move(payload));
  pump_stream(peer, to.streams.size() - 1);
}

}  // namespace weft::net::internal
