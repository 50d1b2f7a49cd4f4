// What arrives from one peer, and how the connection ends. sending.cc has the way out.
//
// A stream is read frame by frame: the header, then begin_frame() finds the place of the payload,
// then the payload is read into it. The place is the buffer of a posted receive, else memory of the
// mailbox. If the mailbox has no room, the stream pauses: its header is kept, nothing more is read,
// and TCP's window stops the peer. post() and wait_for() of the engine resume it. The control
// stream never pauses, so heartbeats, aborts and goodbyes pass a full mailbox.
//
// epoll is level-triggered: a read may stop in the middle, and the rest is reported again.
//
// How a connection ends:
//
//   goodbye, then all data streams end     the peer has left in order, after its last message
//   control stream ends without a goodbye  the peer is lost
//   data stream ends without a goodbye     suspected: the control stream may still bring the
//                                          reason, such as an abort; lost a little later
//   silence                                lost after the peer timeout
//
// stop() comes before any call throws. It forgets all messages, so no memory of a call is used
// later. A frame that is written in part stays so, and its stream carries nothing more. Control
// frames go on: they are the connection's own memory.
#include "weft/net/tcp/internal/peer_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace weft::net::internal {
namespace {

// Number of reads from one stream before other streams and the threads that process data get their
// turn.
constexpr int kReadsATurn = 2;

Piece piece_of(int peer, const Header& h) {
  return {peer, h.channel, h.message, h.total, h.offset, h.length, h.label};
}

// True if the other side is still connected and has not acknowledged all data. Meanwhile its input
// is discarded: unread bytes would turn the close into a reset, and a reset can overtake sent data.
bool on_the_way(int fd) {
  std::byte scratch[16 * 1024];
  ssize_t n = 0;
  while ((n = ::recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT)) > 0) {
  }
  if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

PeerConnection::PeerConnection(const Shared& shared, int peer, std::vector<Fd> sockets)
    : shared_(shared),
      peer_(peer),
      health_(Clock::now().time_since_epoch(), shared.options.peer_timeout) {
  const EngineOptions& options = shared.options;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    set_options(sockets[i], options.peer_timeout);
    fit_to_distance(sockets[i]);
    if (!options.congestion.empty()) set_congestion(sockets[i], options.congestion);
    Stream& stream = streams_.emplace_back();
    stream.connection = std::make_unique<Connection>(std::move(sockets[i]),
                                                     static_cast<std::uint16_t>(i), options.epoch);
    if (i + 1 < sockets.size()) stream.connection->allow_zero_copy(options.zero_copy);
  }
  for (Stream& stream : streams_) watch(stream);
}

void PeerConnection::lost(const std::string& cause) const {
  throw Error(Errc::kPeerLost, "rank " + std::to_string(peer_) + " is lost: " + cause,
              {"", shared_.options.rank, peer_});
}

// Registers the events of a stream with epoll. A stream without events is removed, since a hang-up
// would be reported forever.
void PeerConnection::watch(Stream& stream) {
  std::uint32_t events = 0;
  if (stream.open && !stream.paused) events |= EPOLLIN;
  if (stream.writable && !stream.connection->out().empty()) events |= EPOLLOUT;
  // EPOLLERR is always reported for registered descriptors.
  if (events == 0 && stream.connection->zero_copy_sends().outstanding()) events = EPOLLERR;
  if (events == stream.events) return;
  const auto index = static_cast<std::uint64_t>(&stream - streams_.data());
  epoll_event event{events, {.u64 = static_cast<std::uint64_t>(peer_) << kStreamBits | index}};
  const int how = events == 0 ? EPOLL_CTL_DEL : stream.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(shared_.epoll, how, stream.connection->fd(), &event) != 0) {
    throw Error(Errc::kUnavailable, "cannot watch a connection: " + errno_text(errno));
  }
  stream.events = events;
}

void PeerConnection::handle(std::uint64_t tag, std::uint32_t events) {
  Stream& stream = streams_[tag & ((1u << kStreamBits) - 1)];
  // EPOLLERR reports completed zero-copy sends as well as a broken connection. If there were no
  // such reports, reading finds the error.
  if ((events & EPOLLERR) != 0 && collect(stream)) {
    events &= ~EPOLLERR;
    watch(stream);
  }
  if ((events & ~EPOLLOUT) != 0 && stream.open && !stream.paused) read(stream);
  if ((events & ~EPOLLIN) != 0) pump(stream);
}

// ---- receiving

bool PeerConnection::resume() {
  bool resumed = false;
  for (Stream& stream : streams_) {
    if (!stream.paused) continue;
    stream.paused = false;
    resumed = true;
    read(stream);
  }
  return resumed;
}

void PeerConnection::read(Stream& stream) {
  try {
    read_frames(stream);
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kCorrupt, "from rank " + std::to_string(peer_) + ": " + error.message(),
                {"", shared_.options.rank, peer_});
  }
  watch(stream);
}

void PeerConnection::read_frames(Stream& stream) {
  Connection& connection = *stream.connection;
  bool drained = false;
  for (int reads = 0;;) {
    switch (connection.in().take()) {
      case FrameReader::Input::kHeader:
        if (!begin_frame(stream)) {
          stream.paused = true;
          return;
        }
        break;
      case FrameReader::Input::kFrame: end_frame(stream); break;
      case FrameReader::Input::kNeedBytes: {
        if (drained || reads++ == kReadsATurn) return;
        const auto io = connection.fill(drained);
        if (io == Connection::Io::kClosed) return closed(stream);
        if (io == Connection::Io::kMoved) health_.hear(Clock::now().time_since_epoch());
        break;
      }
    }
  }
}

// Sets the destination of a frame's payload. Returns false if there is no room for it.
bool PeerConnection::begin_frame(Stream& stream) {
  Connection& connection = *stream.connection;
  const Header& header = connection.in().header();
  if (is_control(stream) != (header.type != FrameType::kData))
    throw Error(Errc::kCorrupt, "a frame on a stream of the wrong kind");
  if (is_control(stream)) {
    control_in_.resize(header.length);
    connection.in().place(control_in_.data());
    return true;
  }
  const Piece piece = piece_of(peer_, header);
  // The reader gives the same header again when the stream resumes.
  if (!shared_.mailbox.has_room(piece)) return false;
  bool early = false;
  connection.in().place(shared_.mailbox.begin(piece, &early));
  if (early) shared_.calls.arrived(peer_, piece.channel, piece.label);
  return true;
}

void PeerConnection::end_frame(const Stream& stream) {
  const Header& header = stream.connection->in().header();
  switch (header.type) {
    case FrameType::kData: shared_.mailbox.end(piece_of(peer_, header)); break;
    case FrameType::kHeartbeat: break;
    case FrameType::kAbort: on_abort(); break;
    case FrameType::kGoodbye: on_goodbye(); break;
    case FrameType::kCall:
      shared_.calls.shown(peer_, {header.channel, header.message, header.label});
      break;
  }
}

void PeerConnection::on_abort() {
  throw_abort(decode_abort(control_in_), shared_.options.rank, peer_, shared_.world);
}

void PeerConnection::on_goodbye() {
  goodbye_ = true;
  const bool sending = std::any_of(streams_.begin(), streams_.end(),
                                   [](const Stream& s) { return s.sending != nullptr; });
  if (sending || !small_.empty() || !large_.empty())
    lost("it left the group while a message to it was under way");
  settle();
}

void PeerConnection::closed(Stream& stream) {
  stream.open = stream.writable = false;
  if (!goodbye_ && is_control(stream)) lost(stream.connection->cause());
  suspect(stream);
  settle();
}

// Earlier data of the peer may still contain the reason.
void PeerConnection::suspect(const Stream& stream) {
  if (!goodbye_) health_.suspect(stream.connection->cause(), Clock::now().time_since_epoch());
}

void PeerConnection::settle() {
  left_ = goodbye_ && std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
            return is_control(stream) || !stream.open;
          });
}

// ---- life and death

void PeerConnection::tick(Clock::time_point now) {
  if (peer_ == shared_.options.rank || goodbye_) return;
  const auto time = now.time_since_epoch();
  if (const auto cause = health_.lost(time)) lost(*cause);
  if (control_.empty() && health_.beat(time)) say({.type = FrameType::kHeartbeat});
}

void PeerConnection::give_up(const std::string& cause) const {
  if (!goodbye_) lost(cause);
}

// No zero-copy send may outlive the group, since the caller's memory may be freed after this.
void PeerConnection::stop() {
  stopped_ = true;
  small_.clear();
  large_.clear();
  for (Stream& stream : streams_) {
    stream.sending = nullptr;
    stream.unacknowledged.clear();
    if (!stream.connection->zero_copy_sends().outstanding()) continue;
    stream.connection->cut();
    stream.open = stream.writable = false;
  }
}

bool PeerConnection::all_sent() {
  if (streams_.empty()) return true;
  pump(streams_.back());
  // A broken control stream will never send the rest: nothing is left to wait for.
  if (!control_.empty()) return !streams_.back().writable;
  bool sent = true;
  for (const Stream& stream : streams_) {
    const int fd = stream.connection->fd();
    ::shutdown(fd, SHUT_WR);
    if (stream.open && on_the_way(fd)) sent = false;
  }
  return sent;
}

}  // namespace weft::net::internal
