#include "weft/net/internal/mailbox.h"

#include <cstring>

#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

// What a part costs beside its bytes (maps, vectors): a flood of one-byte messages must count for what it takes.
constexpr std::size_t kPartOverhead = 256;

}  // namespace

void Mailbox::check_match(const Message& message, int peer, Channel channel) const {
  const Label* label = message.receipt->recv.label;
  if (label != nullptr && message.label != label->bytes && message.label != Label::Bytes{}) {
    throw MismatchError(label->mismatch(rank_, label->bytes, peer, message.label));
  }
  const auto expected = message.receipt->recv.bytes.size();
  if (message.total == expected) return;
  throw Error(Errc::kInvalidArgument,
              "rank " + std::to_string(rank_) + " receives " + std::to_string(expected) + " bytes on channel " + std::to_string(channel) +
                  " but rank " + std::to_string(peer) + " sent " + std::to_string(message.total) + "; both must give the same length",
              {"exchange", rank_, peer});
}

// A complete part whose receive is known moves into the receiver's buffer.
void Mailbox::absorb(Message& message, int peer, std::map<std::uint64_t, Part>::iterator part) {
  auto& bytes = part->second.bytes;
  if (!bytes.empty()) std::memcpy(message.receipt->recv.bytes.data() + part->first, bytes.data(), bytes.size());
  waiting_[peer] -= bytes.size() + kPartOverhead;
  message.parts.erase(part);
}

void Mailbox::finish(Lane& lane, std::map<std::uint64_t, Message>::iterator message) {
  Message& m = message->second;
  if (m.receipt == nullptr) return;
  m.receipt->received = m.received;
  if (m.received < m.total || !m.begun || !m.parts.empty()) return;  // an empty message's one piece may have begun and not ended
  m.receipt->done = true;
  m.receipt->operation->complete(m.receipt->id);
  lane.open.erase(message);
}

bool Mailbox::take_whole(const Piece& piece, std::size_t bytes) {
  Lane& lane = lane_of(piece.peer, piece.channel);
  const bool whole = piece.offset == 0 && piece.length == piece.total;
  if (!whole || piece.total != bytes || piece.message != lane.posted || !lane.open.empty()) return false;
  ++lane.posted;
  return true;
}

void Mailbox::post(Channel channel, Receipt& receipt) {
  const int peer = receipt.recv.peer;
  Lane& lane = lane_of(peer, channel);
  const auto at = lane.open.try_emplace(lane.posted++).first;
  Message& message = at->second;
  message.receipt = &receipt;
  ++receipt.operation->pending;
  if (!message.begun) return;
  check_match(message, peer, channel);
  for (auto part = message.parts.begin(); part != message.parts.end();) {
    const auto next = std::next(part);
    if (part->second.complete) absorb(message, peer, part);
    part = next;
  }
  finish(lane, at);
}

bool Mailbox::has_room(const Piece& piece) const {
  if (waiting_[piece.peer] < room_) return true;
  const auto& lanes = lanes_[piece.peer].all;
  const auto lane = lanes.find(piece.channel);
  return lane != lanes.end() && piece.message < lane->second.posted;
}

std::byte* Mailbox::begin(const Piece& piece) {
  Lane& lane = lane_of(piece.peer, piece.channel);
  const auto at = lane.open.try_emplace(piece.message).first;
  Message& message = at->second;
  const auto disagree = [&] {
    throw Error(Errc::kCorrupt, "the pieces of a message from rank " + std::to_string(piece.peer) + " disagree", {"", rank_, piece.peer});
  };
  if (!message.begun) {
    if (message.receipt == nullptr && piece.message < lane.posted) disagree();  // a message that was complete long ago
    message.begun = true;
    message.total = piece.total;
    message.label = piece.label;
    if (message.receipt != nullptr) check_match(message, piece.peer, piece.channel);
  }
  if (piece.total != message.total || piece.offset > message.total || piece.length > message.total - message.received) disagree();
  if (piece.length > message.total - piece.offset) disagree();
  if (message.receipt != nullptr) return message.receipt->recv.bytes.data() + piece.offset;
  const auto [part, fresh] = message.parts.try_emplace(piece.offset);
  if (!fresh) disagree();
  part->second.bytes.resize(piece.length);
  waiting_[piece.peer] += piece.length + kPartOverhead;
  return part->second.bytes.data();
}

Operation* Mailbox::target(const Piece& piece) {
  const Message& message = lane_of(piece.peer, piece.channel).open.at(piece.message);
  return message.receipt == nullptr || message.parts.contains(piece.offset) ? nullptr : message.receipt->operation;
}

void Mailbox::end(const Piece& piece) {
  Lane& lane = lane_of(piece.peer, piece.channel);
  const auto at = lane.open.find(piece.message);
  WEFT_CHECK(at != lane.open.end(), "a piece ends that did not begin");
  Message& message = at->second;
  message.received += piece.length;
  const auto part = message.parts.find(piece.offset);
  if (part != message.parts.end()) {
    part->second.complete = true;
    if (message.receipt != nullptr) absorb(message, piece.peer, part);
  }
  finish(lane, at);
}

int Mailbox::any(Channel channel) {
  const int world = static_cast<int>(lanes_.size());
  for (int i = 0; i < world; ++i) {
    const int peer = (turn_ + i) % world;
    const auto lane = lanes_[peer].all.find(channel);
    if (lane == lanes_[peer].all.end()) continue;
    const auto message = lane->second.open.find(lane->second.posted);
    if (message == lane->second.open.end() || !message->second.begun) continue;
    turn_ = (peer + 1) % world;
    return peer;
  }
  return -1;
}

}  // namespace weft::net::internal
