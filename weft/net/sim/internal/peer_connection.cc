// The protocol of TCP's peer_connection.cc and sending.cc on simulated streams, with the same
// frames, mailbox and rules for the end. The simulation leaves out the queue for small messages,
// zero-copy sends, and labels of calls.
//
// Order: a message is queued in send(), given to the streams frame by frame in load(), and complete
// in written(), when its last frame is in a send buffer. A stream has one frame at a time, so the
// next free stream takes the next frame. What arrives goes from read() to the mailbox, or waits in
// a paused stream until a receive makes room.
//
// One thread runs at a time in the whole simulation (scheduler.h), so nothing is locked. Time
// passes only in the network's events, never inside of a function here.
#include "weft/net/sim/internal/peer_connection.h"

#include <algorithm>
#include <array>

namespace weft::net::sim::internal {
namespace {

using net::internal::FrameReader;
using net::internal::FrameType;
using net::internal::FrameWriter;
using net::internal::Header;
using net::internal::kMaxPayload;
using net::internal::Piece;

Piece piece_of(int peer, const Header& h) {
  return {peer, h.channel, h.message, h.total, h.offset, h.length};
}

}  // namespace

PeerConnection::PeerConnection(const Ends& ends, Network& network, net::internal::Mailbox& mailbox,
                               Events events)
    : ends_(ends),
      network_(network),
      mailbox_(mailbox),
      events_(std::move(events)),
      health_(network.now(), ends.options.peer_timeout) {
  if (ends.peer == ends.rank) return;
  for (int i = 0; i <= ends.options.streams; ++i) {
    Stream& stream = streams_.emplace_back();
    const Socket::Options options{ends.rank, ends.peer, i, ends.options.peer_timeout};
    stream.socket =
        std::make_unique<Socket>(network, options, [changed = events_.changed, i] { changed(i); });
    const auto number = static_cast<std::uint16_t>(i);
    stream.out = std::make_unique<FrameWriter>(number, ends.options.epoch);
    stream.in = std::make_unique<FrameReader>(number, ends.options.epoch);
  }
}

void PeerConnection::lost(const std::string& cause) const {
  throw Error(Errc::kPeerLost, "rank " + std::to_string(ends_.peer) + " is lost: " + cause,
              {"", ends_.rank, ends_.peer});
}

// ---- out

void PeerConnection::send(Outgoing& message) {
  message.number = next_number(message.channel);
  if (goodbye_) lost("it left the group");
  ++message.operation->pending;
  queue_.push_back(&message);
  for (Stream& stream : streams_) pump(stream);
}

void PeerConnection::pump(int index) { pump(stream(index)); }

void PeerConnection::pump(Stream& stream) {
  while (is_control(stream) || !silenced_) {
    if (stream.out->empty() && !load(stream)) return;
    std::array<std::span<const std::byte>, 1> part;
    stream.out->next(part);
    const std::size_t taken = stream.socket->write(part[0]);
    if (taken == 0) return;
    if (stream.out->advance(taken) > 0) written(stream);
  }
}

bool PeerConnection::load(Stream& stream) {
  Header header;
  if (is_control(stream)) {
    if (control_.empty()) return false;
    header.type = control_.front().first;
    stream.out->push(header, control_.front().second);
    return true;
  }
  if (queue_.empty()) return false;
  Outgoing& message = *queue_.front();
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
  if (message.next == bytes.size()) queue_.pop_front();
  return true;
}

void PeerConnection::written(Stream& stream) {
  if (is_control(stream)) return control_.pop_front();
  Outgoing& message = *std::exchange(stream.sending, nullptr);
  --message.flying;
  if (!message.complete()) return;
  --message.operation->pending;
  events_.wake();
}

void PeerConnection::say(FrameType type, std::vector<std::byte> payload) {
  if (streams_.empty() || goodbye_) return;
  control_.emplace_back(type, std::move(payload));
  pump(streams_.back());
}

bool PeerConnection::all_acknowledged() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return stream.socket->all_acknowledged(); });
}

// ---- in

void PeerConnection::read(int index, bool only_control) {
  Stream& from = stream(index);
  if (from.open && !from.paused && (!only_control || is_control(from))) read(from);
}

void PeerConnection::read_paused() {
  for (Stream& stream : streams_) {
    if (std::exchange(stream.paused, false)) read(stream);
  }
}

void PeerConnection::drain(int index) {
  std::array<std::byte, 4096> scratch;
  while (stream(index).socket->read(scratch) > 0) {
  }
}

void PeerConnection::tick() {
  if (streams_.empty() || goodbye_) return;
  if (const auto cause = health_.lost(network_.now())) lost(*cause);
  if (control_.empty() && health_.beat(network_.now())) say(FrameType::kHeartbeat, {});
}

void PeerConnection::read(Stream& stream) {
  try {
    while (stream.open) {
      const auto input = stream.in->take();
      if (input == FrameReader::Input::kHeader && !begin_frame(stream)) {
        stream.paused = true;
        return;
      }
      if (input == FrameReader::Input::kFrame) end_frame(stream);
      if (input != FrameReader::Input::kNeedBytes || fill(stream)) continue;
      if (stream.socket->at_end() || stream.socket->broken()) closed(stream);
      return;
    }
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kCorrupt, "from rank " + std::to_string(ends_.peer) + ": " + error.message(),
                {"", ends_.rank, ends_.peer});
  }
}

bool PeerConnection::fill(Stream& stream) {
  std::size_t got = 0;
  for (const auto& part : stream.in->space()) {
    const std::size_t n = part.empty() ? 0 : stream.socket->read(part);
    got += n;
    if (n < part.size()) break;
  }
  if (got > 0) stream.in->filled(got);
  return got > 0;
}

bool PeerConnection::begin_frame(Stream& stream) {
  const Header& header = stream.in->header();
  health_.hear(network_.now());
  if (is_control(stream) != (header.type != FrameType::kData))
    throw Error(Errc::kCorrupt, "a frame on a stream of the wrong kind");
  if (is_control(stream)) {
    control_in_.resize(header.length);
    stream.in->place(control_in_.data());
    return true;
  }
  const Piece piece = piece_of(ends_.peer, header);
  if (!mailbox_.has_room(piece)) return false;
  stream.in->place(mailbox_.begin(piece));
  return true;
}

void PeerConnection::end_frame(const Stream& stream) {
  const Header& header = stream.in->header();
  switch (header.type) {
    case FrameType::kData:
      mailbox_.end(piece_of(ends_.peer, header));
      events_.wake();
      break;
    case FrameType::kHeartbeat: break;
    case FrameType::kAbort: on_abort(); break;
    case FrameType::kGoodbye: on_goodbye(); break;
    case FrameType::kCall: break;  // simulated ranks do not send calls
  }
}

void PeerConnection::on_abort() {
  net::internal::throw_abort(net::internal::decode_abort(control_in_), ends_.rank, ends_.peer,
                             ends_.options.world);
}

void PeerConnection::on_goodbye() {
  goodbye_ = true;
  const bool sending = std::any_of(streams_.begin(), streams_.end(),
                                   [](const Stream& s) { return s.sending != nullptr; });
  if (sending || !queue_.empty()) lost("it left the group while a message to it was under way");
  settle();
}

// ---- end

void PeerConnection::closed(Stream& stream) {
  stream.open = false;
  const std::string cause =
      stream.socket->broken() ? stream.socket->cause() : "its connection was closed";
  // A data stream may end first: the control stream may still bring the reason.
  if (!goodbye_ && is_control(stream)) lost(cause);
  if (!goodbye_) health_.suspect(cause, network_.now());
  settle();
}

void PeerConnection::settle() {
  const bool all = std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    return is_control(stream) || !stream.open;
  });
  if (!goodbye_ || !all || left_) return;
  left_ = true;
  events_.wake();
}

void PeerConnection::close() {
  for (Stream& stream : streams_) {
    if (control_.empty()) stream.socket->close();
  }
}

void PeerConnection::abandon() {
  for (Stream& stream : streams_) stream.socket->abandon();
}

void PeerConnection::reset() {
  for (Stream& stream : streams_) stream.socket->reset();
}

}  // namespace weft::net::sim::internal
