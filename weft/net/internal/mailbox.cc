// A message is opened by whichever comes first, its receive (post()) or its first piece (begin()).
// Both have a number: the sender counts its messages of a channel, and the mailbox counts the
// receives. So receive n gets message n, in whatever order the pieces arrive over several streams.
//
//   receive first   each piece goes to the caller's buffer
//   piece first     it gets a part of its own; post() copies the parts that have ended
//   both            a part that was begun before the receive is copied at its end(): its bytes are
//                   still being written
//
// A message is complete when its receive is known, all bytes have come and no part is left.
//
// Memory of parts is limited for each peer. The owner asks has_room() before begin(), and stops
// reading if there is none. While this rank waits for the peer there is always room: the awaited
// message may lie behind this piece in the same stream, and would never come.
#include "weft/net/internal/mailbox.h"

#include <cstring>

#include "weft/net/channels.h"
#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

// Overhead of a part beside its bytes (maps, vectors), so that a flood of one-byte messages counts
// with its real memory.
constexpr std::size_t kPartOverhead = 256;

}  // namespace

void Mailbox::check_match(const Message& message, int peer, Channel channel) const {
  const Label* label = message.receipt->recv.label;
  if (label != nullptr && message.label != label->bytes && message.label != Label::Bytes{}) {
    const auto error = label->mismatch(rank_, label->bytes, peer, message.label);
    if (error) throw MismatchError(*error);
  }
  const auto expected = message.receipt->recv.bytes.size();
  if (message.total == expected) return;
  throw Error(Errc::kInvalidArgument,
              "rank " + std::to_string(rank_) + " receives " + std::to_string(expected) + " bytes" +
                  on_channel(channel) + " but rank " + std::to_string(peer) + " sent " +
                  std::to_string(message.total) + "; both must use the same length",
              {"message", rank_, peer});
}

// Copies a complete part to the receiver's buffer once the receive is known.
void Mailbox::absorb(Message& message, int peer, std::map<std::uint64_t, Part>::iterator part) {
  auto& bytes = part->second.bytes;
  if (!bytes.empty())
    std::memcpy(message.receipt->recv.bytes.data() + part->first, bytes.data(), bytes.size());
  waiting_[peer] -= bytes.size() + kPartOverhead;
  message.parts.erase(part);
}

void Mailbox::finish(ChannelQueue& queue, std::map<std::uint64_t, Message>::iterator message) {
  Message& m = message->second;
  if (m.receipt == nullptr) return;
  m.receipt->received = m.received;
  // The single piece of an empty message may have begun but not ended.
  if (m.received < m.total || !m.begun || !m.parts.empty()) return;
  m.receipt->done = true;
  if (m.receipt->awaited) --awaited_[m.receipt->recv.peer];
  m.receipt->operation->complete(m.receipt->id);
  queue.open.erase(message);
}

bool Mailbox::take_whole(const Piece& piece, std::size_t bytes) {
  ChannelQueue& queue = queue_of(piece.peer, piece.channel);
  // The number must be that of the next receive, or an earlier message is still on its way.
  const bool whole = piece.offset == 0 && piece.length == piece.total;
  if (!whole || piece.total != bytes || piece.message != queue.posted || !queue.open.empty())
    return false;
  ++queue.posted;
  return true;
}

void Mailbox::post(Channel channel, Receipt& receipt) {
  const int peer = receipt.recv.peer;
  ChannelQueue& queue = queue_of(peer, channel);
  const auto at = queue.open.try_emplace(queue.posted++).first;
  Message& message = at->second;
  message.receipt = &receipt;
  if (receipt.awaited) ++awaited_[peer];
  ++receipt.operation->pending;
  if (!message.begun) return;
  check_match(message, peer, channel);
  for (auto part = message.parts.begin(); part != message.parts.end();) {
    const auto next = std::next(part);
    if (part->second.complete) absorb(message, peer, part);
    part = next;
  }
  finish(queue, at);
}

bool Mailbox::has_room(const Piece& piece) const {
  if (waiting_[piece.peer] < room_ || awaited_[piece.peer] > 0) return true;
  const auto& queues = queues_[piece.peer].all;
  const auto queue = queues.find(piece.channel);
  return queue != queues.end() && piece.message < queue->second.posted;
}

std::byte* Mailbox::begin(const Piece& piece, bool* early) {
  ChannelQueue& queue = queue_of(piece.peer, piece.channel);
  const auto at = queue.open.try_emplace(piece.message).first;
  Message& message = at->second;
  const auto disagree = [&] {
    throw Error(Errc::kCorrupt,
                "the pieces of a message from rank " + std::to_string(piece.peer) + " disagree",
                {"", rank_, piece.peer});
  };
  if (!message.begun) {
    // The message was complete already.
    if (message.receipt == nullptr && piece.message < queue.posted) disagree();
    message.begun = true;
    message.total = piece.total;
    message.label = piece.label;
    if (message.receipt != nullptr) check_match(message, piece.peer, piece.channel);
    if (message.receipt == nullptr && early != nullptr) *early = true;
  }
  if (piece.total != message.total || piece.offset > message.total ||
      piece.length > message.total - message.received)
    disagree();
  if (piece.length > message.total - piece.offset) disagree();
  if (message.receipt != nullptr) return message.receipt->recv.bytes.data() + piece.offset;
  const auto [part, fresh] = message.parts.try_emplace(piece.offset);
  if (!fresh) disagree();
  part->second.bytes.resize(piece.length);
  waiting_[piece.peer] += piece.length + kPartOverhead;
  return part->second.bytes.data();
}

Operation* Mailbox::target(const Piece& piece) {
  const Message& message = queue_of(piece.peer, piece.channel).open.at(piece.message);
  return message.receipt == nullptr || message.parts.contains(piece.offset)
             ? nullptr
             : message.receipt->operation;
}

void Mailbox::end(const Piece& piece) {
  ChannelQueue& queue = queue_of(piece.peer, piece.channel);
  const auto at = queue.open.find(piece.message);
  WEFT_CHECK(at != queue.open.end(), "end() of a piece without begin()");
  Message& message = at->second;
  message.received += piece.length;
  const auto part = message.parts.find(piece.offset);
  if (part != message.parts.end()) {
    part->second.complete = true;
    if (message.receipt != nullptr) absorb(message, piece.peer, part);
  }
  finish(queue, at);
}

void Mailbox::wait_for(int peer, bool begin) {
  for (int other = 0; other < static_cast<int>(awaited_.size()); ++other) {
    if (peer < 0 || peer == other) awaited_[other] += begin ? 1 : -1;
  }
}

int Mailbox::any(Channel channel, const std::function<bool(int peer)>& may) {
  const int world = static_cast<int>(queues_.size());
  for (int i = 0; i < world; ++i) {
    const int peer = (turn_ + i) % world;
    const auto queue = queues_[peer].all.find(channel);
    if (queue == queues_[peer].all.end()) continue;
    const auto message = queue->second.open.find(queue->second.posted);
    if (message == queue->second.open.end() || !message->second.begun) continue;
    if (may && !may(peer)) continue;
    turn_ = (peer + 1) % world;
    return peer;
  }
  return -1;
}

}  // namespace weft::net::internal
