// Frames of a simulated endpoint: from messages to streams, and from streams to the mailbox.
#include <algorithm>
#include <array>
#include <cstring>

#include "weft/net/sim/internal/endpoint.h"

namespace weft::net::sim::internal {
namespace {

using net::internal::Abort;
using net::internal::FrameReader;
using net::internal::FrameType;
using net::internal::Header;
using net::internal::kMaxPayload;
using net::internal::Piece;
using net::internal::Receipt;

Piece piece_of(int peer, const Header& h) {
  return {peer, h.channel, h.message, h.total, h.offset, h.length};
}

}  // namespace

// ---- out

void SimEndpoint::send(Outgoing& message) {
  Peer& to = peers_[static_cast<std::size_t>(message.send.peer)];
  message.number = to.sent[message.channel]++;
  const auto bytes = message.send.bytes;
  if (message.send.peer == rank_) {
    const Piece piece{rank_, message.channel, message.number, bytes.size(), 0, bytes.size()};
    std::byte* const place = mailbox_.begin(piece);
    if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
    return mailbox_.end(piece);
  }
  if (to.goodbye) lost(message.send.peer, "it left the group");
  ++message.operation->pending;
  to.queue.push_back(&message);
  for (Stream& stream : to.streams) pump(message.send.peer, stream);
}

void SimEndpoint::pump(int peer, Stream& stream) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  while (is_control(to, stream) || !silenced_) {
    if (stream.out->empty() && !load(to, stream)) return;
    std::array<std::span<const std::byte>, 1> part;
    stream.out->next(part);
    const std::size_t taken = stream.socket->write(part[0]);
    if (taken == 0) return;
    if (stream.out->advance(taken) > 0) written(to, stream);
  }
}

bool SimEndpoint::load(Peer& peer, Stream& stream) {
  Header header;
  if (is_control(peer, stream)) {
    if (peer.control.empty()) return false;
    header.type = peer.control.front().first;
    stream.out->push(header, peer.control.front().second);
    return true;
  }
  if (peer.queue.empty()) return false;
  Outgoing& message = *peer.queue.front();
  const auto bytes = message.send.bytes;
  header.channel = message.channel;
  header.message = message.number;
  header.total = bytes.size();
  header.offset = message.next;
  const std::size_t length = std::min(kMaxPayload, bytes.size() - message.next);
  stream.out->push(header, bytes.subspan(message.next, length));
  stream.sending = &message;
  message.next += length;
  ++message.flying;
  if (message.next == bytes.size()) peer.queue.pop_front();
  return true;
}

void SimEndpoint::written(Peer& peer, Stream& stream) {
  if (is_control(peer, stream)) return peer.control.pop_front();
  Outgoing& message = *std::exchange(stream.sending, nullptr);
  if (--message.flying > 0 || message.next < message.send.bytes.size()) return;
  --message.operation->pending;
  wake();
}

void SimEndpoint::say(int peer, FrameType type, std::vector<std::byte> payload) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.streams.empty() || to.goodbye) return;
  to.control.emplace_back(type, std::move(payload));
  pump(peer, to.streams.back());
}

// ---- in

void SimEndpoint::post(Channel channel, Receipt& receipt) {
  mailbox_.post(channel, receipt);
  for (Stream& stream : peers_[static_cast<std::size_t>(receipt.recv.peer)].streams) {
    if (!std::exchange(stream.paused, false)) continue;
    read(receipt.recv.peer, stream);
  }
}

void SimEndpoint::read(int peer, Stream& stream) {
  try {
    while (stream.open) {
      const auto input = stream.in->take();
      if (input == FrameReader::Input::kHeader && !begin_frame(peer, stream)) {
        stream.paused = true;
        return;
      }
      if (input == FrameReader::Input::kFrame) end_frame(peer, stream);
      if (input != FrameReader::Input::kNeedBytes || fill(stream)) continue;
      if (stream.socket->at_end() || stream.socket->broken()) closed(peer, stream);
      return;
    }
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kCorrupt, "from rank " + std::to_string(peer) + ": " + error.message(),
                {"", rank_, peer});
  }
}

bool SimEndpoint::fill(Stream& stream) {
  std::size_t got = 0;
  for (const auto& part : stream.in->space()) {
    const std::size_t n = part.empty() ? 0 : stream.socket->read(part);
    got += n;
    if (n < part.size()) break;
  }
  if (got > 0) stream.in->filled(got);
  return got > 0;
}

bool SimEndpoint::begin_frame(int peer, Stream& stream) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  const Header& header = stream.in->header();
  from.heard = network_.now();
  if (is_control(from, stream) != (header.type != FrameType::kData))
    throw Error(Errc::kCorrupt, "a frame on a stream of the wrong kind");
  if (is_control(from, stream)) {
    from.control_in.resize(header.length);
    stream.in->place(from.control_in.data());
    return true;
  }
  const Piece piece = piece_of(peer, header);
  if (!mailbox_.has_room(piece)) return false;
  stream.in->place(mailbox_.begin(piece));
  return true;
}

void SimEndpoint::end_frame(int peer, const Stream& stream) {
  const Header& header = stream.in->header();
  switch (header.type) {
    case FrameType::kData:
      mailbox_.end(piece_of(peer, header));
      wake();
      break;
    case FrameType::kHeartbeat: break;
    case FrameType::kAbort: on_abort(peer); break;
    case FrameType::kGoodbye: on_goodbye(peer); break;
    case FrameType::kCall: break;  // simulated ranks do not send calls
  }
}

void SimEndpoint::on_abort(int peer) {
  const Abort abort =
      net::internal::decode_abort(peers_[static_cast<std::size_t>(peer)].control_in);
  const std::string sender = "rank " + std::to_string(peer);
  if (abort.code != Errc::kPeerLost)
    throw Error(Errc::kAborted, sender + " failed: " + abort.message, {"", rank_, peer});
  if (abort.peer < 0 || abort.peer >= world())
    throw Error(Errc::kCorrupt, "an abort frame that names no rank of the group");
  if (abort.peer == rank_)
    throw Error(Errc::kAborted, sender + " gave this rank up: " + abort.message, {"", rank_, peer});
  throw Error(Errc::kPeerLost, abort.message, {"", rank_, abort.peer});
}

}  // namespace weft::net::sim::internal
