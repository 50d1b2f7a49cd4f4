#include "weft/net/tcp/internal/engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr int kStreamBits = 16;
// Number of reads from one stream before other streams and the threads that process data get their
// turn.
constexpr int kReadsATurn = 2;
// If a data stream closes without a goodbye, the control stream must report the reason within this
// time; otherwise the peer is lost.
constexpr auto kGrace = 250ms;

Piece piece_of(int peer, const Header& h) {
  return {peer, h.channel, h.message, h.total, h.offset, h.length, h.label};
}

}  // namespace

Engine::Engine(const EngineOptions& options, Mesh mesh)
    : options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      mailbox_(options.rank, static_cast<int>(mesh.size()), options.room),
      calls_(options.rank, static_cast<int>(mesh.size())),
      peers_(mesh.size()) {
  if (!epoll_ || !wake_)
    throw Error(Errc::kUnavailable, "cannot create descriptors: " + errno_text(errno));
  epoll_event event{EPOLLIN, {.u64 = kWakeTag}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  for (int peer = 0; peer < world(); ++peer) {
    peers_[peer].heard = peers_[peer].beaten = Clock::now();
    for (std::size_t i = 0; i < mesh[peer].size(); ++i) {
      set_options(mesh[peer][i], options.peer_timeout);
      fit_to_distance(mesh[peer][i]);
      if (!options.congestion.empty()) set_congestion(mesh[peer][i], options.congestion);
      Stream stream;
      stream.connection = std::make_unique<Connection>(
          std::move(mesh[peer][i]), static_cast<std::uint16_t>(i), options.epoch);
      if (i + 1 < mesh[peer].size()) stream.connection->allow_zero_copy(options.zero_copy);
      peers_[peer].streams.push_back(std::move(stream));
    }
    for (std::size_t i = 0; i < peers_[peer].streams.size(); ++i) watch(peer, i);
  }
}

void Engine::wake() const {
  const std::uint64_t one = 1;
  // If the counter is full, a wake-up is pending already.
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof(one));
}

void Engine::lost(int peer, const std::string& cause) const {
  throw Error(Errc::kPeerLost, "rank " + std::to_string(peer) + " is lost: " + cause,
              {"", options_.rank, peer});
}

// Registers the events of a stream with epoll. A stream without events is removed, since a hang-up
// would be reported forever.
void Engine::watch(int peer, std::size_t index) {
  Stream& stream = peers_[peer].streams[index];
  std::uint32_t events = 0;
  if (stream.open && !stream.paused) events |= EPOLLIN;
  if (stream.writable && !stream.connection->out().empty()) events |= EPOLLOUT;
  // EPOLLERR is always reported for registered descriptors.
  if (events == 0 && stream.connection->zero_copy_sends().outstanding()) events = EPOLLERR;
  if (events == stream.events) return;
  epoll_event event{events, {.u64 = static_cast<std::uint64_t>(peer) << kStreamBits | index}};
  const int how = events == 0 ? EPOLL_CTL_DEL : stream.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), how, stream.connection->fd(), &event) != 0) {
    throw Error(Errc::kUnavailable, "cannot watch a connection: " + errno_text(errno));
  }
  stream.events = events;
}

void Engine::handle(std::uint64_t tag, std::uint32_t events) {
  if (stopped_) return;
  if (tag == kWakeTag) {
    std::uint64_t count;
    [[maybe_unused]] const auto n = ::read(wake_.get(), &count, sizeof(count));
    return;
  }
  const int peer = static_cast<int>(tag >> kStreamBits);
  const std::size_t index = tag & ((1u << kStreamBits) - 1);
  Stream& stream = peers_[peer].streams[index];
  if ((events & EPOLLERR) != 0 && collect(stream)) {
    events &= ~EPOLLERR;
    watch(peer, index);
  }
  if ((events & ~EPOLLOUT) != 0 && stream.open && !stream.paused) read(peer, index);
  if ((events & ~EPOLLIN) != 0) pump_stream(peer, index);
}

// ---- receiving

void Engine::post(Channel channel, Receipt& receipt) {
  mailbox_.post(channel, receipt);
  resume(receipt.recv.peer);
}

bool Engine::wait_for(int peer, bool begin) {
  mailbox_.wait_for(peer, begin);
  bool resumed = false;
  for (int other = 0; begin && other < world(); ++other)
    if (peer < 0 || peer == other) resumed |= resume(other);
  return resumed;
}

// There may be room for the frames of streams that are paused. Returns true if some are.
bool Engine::resume(int peer) {
  auto& streams = peers_[peer].streams;
  bool resumed = false;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (!streams[i].paused) continue;
    streams[i].paused = false;
    resumed = true;
    read(peer, i);
  }
  return resumed;
}

void Engine::read(int peer, std::size_t index) {
  try {
    read_frames(peer, index);
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kCorrupt, "from rank " + std::to_string(peer) + ": " + error.message(),
                {"", options_.rank, peer});
  }
  watch(peer, index);
}

void Engine::read_frames(int peer, std::size_t index) {
  Stream& stream = peers_[peer].streams[index];
  Connection& connection = *stream.connection;
  bool drained = false;
  for (int reads = 0;;) {
    switch (connection.in().take()) {
      case FrameReader::Input::kHeader:
        if (!begin_frame(peer, index)) {
          stream.paused = true;
          return;
        }
        break;
      case FrameReader::Input::kFrame: end_frame(peer, index); break;
      case FrameReader::Input::kNeedBytes: {
        if (drained || reads++ == kReadsATurn) return;
        const auto io = connection.fill(drained);
        if (io == Connection::Io::kClosed) return closed(peer, index);
        if (io == Connection::Io::kMoved) peers_[peer].heard = Clock::now();
        break;
      }
    }
  }
}

// Sets the destination of a frame's payload. Returns false if there is no room for it.
bool Engine::begin_frame(int peer, std::size_t index) {
  Peer& from = peers_[peer];
  Connection& connection = *from.streams[index].connection;
  const Header& header = connection.in().header();
  if (is_control(from, index) != (header.type != FrameType::kData))
    throw Error(Errc::kCorrupt, "a frame on a stream of the wrong kind");
  if (is_control(from, index)) {
    from.control_in.resize(header.length);
    connection.in().place(from.control_in.data());
    return true;
  }
  const Piece piece = piece_of(peer, header);
  if (!mailbox_.has_room(piece)) return false;
  bool early = false;
  connection.in().place(mailbox_.begin(piece, &early));
  if (early) calls_.arrived(peer, piece.channel, piece.label);
  return true;
}

void Engine::end_frame(int peer, std::size_t index) {
  const Header& header = peers_[peer].streams[index].connection->in().header();
  switch (header.type) {
    case FrameType::kData: mailbox_.end(piece_of(peer, header)); break;
    case FrameType::kHeartbeat: break;
    case FrameType::kAbort: on_abort(peer); break;
    case FrameType::kGoodbye: on_goodbye(peer); break;
    case FrameType::kCall:
      calls_.shown(peer, {header.channel, header.message, header.label});
      break;
  }
}

void Engine::on_abort(int peer) {
  const Abort abort = decode_abort(peers_[peer].control_in);
  if (abort.mismatch)
    throw MismatchError(Error(abort.code, abort.message, {"", options_.rank, peer}));
  const bool is_passed_on = abort.code == Errc::kAborted && abort.peer >= 0;
  if (abort.code != Errc::kPeerLost && !is_passed_on) {
    throw AbortedError(Error(Errc::kAborted,
                             "rank " + std::to_string(peer) + " failed: " + abort.message,
                             {"", options_.rank, peer}));
  }
  if (abort.peer < 0 || abort.peer >= world())
    throw Error(Errc::kCorrupt, "an abort frame that names no rank of the group");
  if (is_passed_on)
    throw AbortedError(Error(Errc::kAborted, abort.message, {"", options_.rank, abort.peer}));
  if (abort.peer == options_.rank) {
    throw Error(Errc::kAborted,
                "rank " + std::to_string(peer) + " gave this rank up: " + abort.message,
                {"", options_.rank, peer});
  }
  throw Error(Errc::kPeerLost, abort.message, {"", options_.rank, abort.peer});
}

void Engine::on_goodbye(int peer) {
  Peer& from = peers_[peer];
  from.goodbye = true;
  const bool sending = std::any_of(from.streams.begin(), from.streams.end(),
                                   [](const Stream& s) { return s.sending != nullptr; });
  if (sending || !from.small.empty() || !from.large.empty())
    lost(peer, "it left the group while a message to it was under way");
  settle(from);
}

void Engine::closed(int peer, std::size_t index) {
  Peer& from = peers_[peer];
  Stream& stream = from.streams[index];
  stream.open = stream.writable = false;
  if (!from.goodbye && is_control(from, index)) lost(peer, stream.connection->cause());
  if (!from.goodbye) suspect(from, stream.connection->cause());
  settle(from);
}

void Engine::suspect(Peer& peer, const std::string& cause) {
  if (peer.suspected != Clock::time_point{}) return;
  peer.suspected = Clock::now();
  peer.cause = cause;
}

void Engine::settle(Peer& peer) {
  const auto done = [&](const Stream& stream) {
    return &stream == &peer.streams.back() || !stream.open;
  };
  peer.left = peer.goodbye && std::all_of(peer.streams.begin(), peer.streams.end(), done);
}

// ---- life and death

void Engine::tick(Clock::time_point now) {
  for (const int peer : options_.found_lost ? options_.found_lost() : std::vector<int>()) {
    const bool is_other = peer >= 0 && peer < world() && peer != options_.rank;
    if (is_other && !peers_[peer].goodbye) lost(peer, "its node is lost or cannot be reached");
  }
  const auto interval = std::min<Clock::duration>(options_.peer_timeout / 4, 1s);
  for (int peer = 0; peer < world(); ++peer) {
    Peer& other = peers_[peer];
    if (peer == options_.rank || other.goodbye) continue;
    if (other.suspected != Clock::time_point{} && now - other.suspected >= kGrace)
      lost(peer, other.cause);
    if (now - other.heard > options_.peer_timeout) {
      lost(peer,
           "nothing was heard of it for " + std::to_string(options_.peer_timeout.count()) + " ms");
    }
    if (now - other.beaten < interval || !other.control.empty()) continue;
    other.beaten = now;
    push_control(peer, {.type = FrameType::kHeartbeat});
  }
  for (const Calls::Shown& call : calls_.due()) {
    const Header header{.type = FrameType::kCall,
                        .channel = call.channel,
                        .message = call.number,
                        .label = call.label};
    for (int peer = 0; peer < world(); ++peer) push_control(peer, header);
  }
}

void Engine::stop() {
  stopped_ = true;
  for (Peer& peer : peers_) {
    peer.small.clear();
    peer.large.clear();
    for (Stream& stream : peer.streams) end_zero_copy(stream);
  }
}

// No zero-copy send may outlive the group, since the caller's memory may be freed after stop().
void Engine::end_zero_copy(Stream& stream) {
  stream.sending = nullptr;
  stream.unacknowledged.clear();
  if (!stream.connection->zero_copy_sends().outstanding()) return;
  stream.connection->cut();
  stream.open = stream.writable = false;
}

void Engine::tell(const Abort& abort) {
  for (int peer = 0; peer < world(); ++peer)
    push_control(peer, {.type = FrameType::kAbort}, encode(abort));
}

void Engine::tell_rest() {
  for (int peer = 0; peer < world(); ++peer) {
    Peer& to = peers_[peer];
    if (!to.control.empty()) pump_stream(peer, to.streams.size() - 1);
  }
}

}  // namespace weft::net::internal
