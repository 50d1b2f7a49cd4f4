// Every pair of ranks needs one connection for each stream. The higher rank dials, so no pair is
// connected twice. One loop does everything, and nothing in it waits but poll():
//
//   dial what is due ─► poll ─► advance ready handshakes ─► accept ─► drop those that are late
//
// A connection is in pending_ until its handshake has ended, then in mesh_. A connection that this
// rank dialed and lost is dialed again after a pause: the peer may not listen yet. A rejection by
// the peer ends the formation, since another dial would get the same answer.
//
// Strangers can connect too. They cost a descriptor and a place in pending_ until their first
// bytes, or their handshake's deadline. Beyond the limit, a new connection takes the place of the
// oldest accepted one. So idle strangers cannot keep a rank out, and dialed connections never give
// way.
//
// One thread, no locks.
#include "weft/net/tcp/internal/formation.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace weft::net::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kDialAgain = 20ms;

// Limit of simultaneous unfinished connections. A new one replaces the oldest.
std::size_t pending_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<std::size_t>(limit.rlim_cur / 2, 16, 1024);
}

// A peer that has given up its handshake while this rank was busy dials again.
bool is_closed_by_peer(const Fd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

Formation::Formation(const FormationOptions& options, const Fd& listener)
    : options_(options), listener_(listener), mesh_(options.me.world), limit_(pending_limit()) {
  for (int peer = 0; peer < options.me.world; ++peer) {
    if (peer == options.me.rank) continue;
    mesh_[peer].resize(options.me.streams);
    if (peer > options.me.rank) continue;
    for (int stream = 0; stream < options.me.streams; ++stream)
      dials_.push_back({peer, stream, {}});
  }
}

Mesh Formation::run(Deadline deadline) {
  while (!complete()) {
    if (deadline.passed()) timed_out();
    start_dials();
    poll_once(deadline);
    expire();
    look_for_lost_peer();
  }
  return std::move(mesh_);
}

void Formation::look_for_lost_peer() {
  const auto now = Deadline::Clock::now();
  if (!options_.lost_peer || now < look_again_) return;
  look_again_ = now + std::chrono::milliseconds(50);
  if (const auto lost = options_.lost_peer()) {
    throw Error(Errc::kPeerLost, "rank " + std::to_string(*lost) + " ended before it was connected",
                {"connect", options_.me.rank, *lost});
  }
}

bool Formation::complete() const {
  return std::all_of(mesh_.begin(), mesh_.end(), [](const auto& streams) {
    return std::all_of(streams.begin(), streams.end(),
                       [](const Fd& fd) { return static_cast<bool>(fd); });
  });
}

void Formation::start_dials() {
  const auto now = Deadline::Clock::now();
  for (Dial& dial : dials_) {
    if (dial.under_way || dial.again > now) continue;
    const std::string& address = options_.addresses[dial.peer];
    dial.again = now + kDialAgain;
    try {
      pending_.push_back({HandshakeConnection(begin_connect(address), dial.peer, dial.stream),
                          Deadline::in(options_.handshake_timeout), address});
      dial.under_way = true;
    } catch (const Error& error) {
      if (error.code() != Errc::kUnavailable) throw;
      // This process has no descriptor left. Another try would fail, too.
      if (error.context().operation == kNoDescriptors) throw;
      dial.failure = error.message();  // retried until the deadline
    }
  }
}

void Formation::poll_once(Deadline deadline) {
  std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
  for (const Pending& p : pending_)
    fds.push_back(
        {p.shake.fd(), static_cast<short>(p.shake.is_connecting() ? POLLOUT : POLLIN), 0});
  const auto wait = std::min<int>(deadline.left_ms(), 20);
  if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) {
    throw Error(Errc::kInternal, "poll failed: " + errno_text(errno));
  }
  std::size_t i = 1;
  for (auto p = pending_.begin(); p != pending_.end(); ++i) {
    const auto next = std::next(p);
    if (fds[i].revents != 0 && !advance(*p)) {
      release_dial(*p, p->shake.failure());
      pending_.erase(p);
    }
    p = next;
  }
  // After the loop: fds[i] belongs to the connection at the same place in pending_.
  if (fds[0].revents != 0) accept_all();
}

void Formation::accept_all() {
  for (std::size_t i = 0; i < limit_; ++i) {
    std::string from;
    int error = 0;
    Fd fd = accept_on(listener_, from, error);
    const bool exhausted = error == EMFILE || error == ENFILE;
    if (!fd && !exhausted) return;
    if (exhausted || pending_.size() >= limit_) {
      const auto oldest = std::find_if(pending_.begin(), pending_.end(),
                                       [](const Pending& p) { return p.shake.is_accepted(); });
      // Without a connection of strangers to close, this process itself has opened too many files.
      if (exhausted && oldest == pending_.end()) fail_without_descriptors();
      if (oldest != pending_.end()) pending_.erase(oldest);
      if (exhausted || pending_.size() >= limit_) return;
    }
    pending_.push_back(
        {HandshakeConnection(std::move(fd)), Deadline::in(options_.handshake_timeout), from});
  }
}

void Formation::expire() {
  for (auto p = pending_.begin(); p != pending_.end();) {
    const auto next = std::next(p);
    if (p->deadline.passed()) {
      if (p->shake.is_accepted()) refuse(*p, Verdict::kMalformed);
      release_dial(*p,
                   p->shake.is_connecting() ? "no answer" : "the handshake did not end in time");
      pending_.erase(p);
    }
    p = next;
  }
}

bool Formation::advance(Pending& p) {
  using Result = HandshakeConnection::Result;
  const Result result = p.shake.advance(options_.me, [this](int peer, int stream) {
    const Fd& fd = mesh_[peer][stream];
    return fd && !is_closed_by_peer(fd);
  });
  if (result == Result::kWaits) return true;
  if (result == Result::kEstablished) mesh_[p.shake.peer()][p.shake.stream()] = p.shake.take_fd();
  if (result == Result::kRefused && !p.shake.is_accepted()) refused_by(p, p.shake.verdict());
  if (result == Result::kRefused) refuse(p, p.shake.verdict());
  return false;
}

// A dialed connection that failed is retried.
void Formation::release_dial(const Pending& p, const std::string& failure) {
  for (Dial& dial : dials_) {
    if (dial.peer != p.shake.peer() || dial.stream != p.shake.stream()) continue;
    // An established connection stays under way, so that it is never dialed again.
    dial.under_way = static_cast<bool>(mesh_[dial.peer][dial.stream]);
    dial.again = Deadline::Clock::now() + kDialAgain;
    dial.failure = failure;
  }
}

void Formation::refuse(const Pending& p, Verdict verdict) {
  ++refused_;
  last_refusal_ = "rank " + std::to_string(options_.me.rank) + " refused a connection from " +
                  p.where + ": " + explain(verdict);
  const auto now = Deadline::Clock::now();
  if (!options_.on_refused || now < next_report_) return;
  next_report_ = now + 1s;
  options_.on_refused(last_refusal_);
}

void Formation::refused_by(const Pending& p, Verdict verdict) const {
  // A try under the current epoch may succeed, and a damaged hello may be an accident. The other
  // reasons are settings.
  const bool retry = verdict == Verdict::kEpoch || verdict == Verdict::kMalformed;
  throw Error(retry ? Errc::kUnavailable : Errc::kBadConfig,
              "rank " + std::to_string(p.shake.peer()) + " at " + p.where +
                  " cannot be joined: " + explain(verdict),
              {"connect", options_.me.rank, p.shake.peer()});
}

// Rank, address and reason of a missing connection.
std::string Formation::absence_of(int peer) const {
  const std::string& address = options_.addresses[peer];
  if (peer > options_.me.rank) {
    return "rank " + std::to_string(peer) + " (it has not connected to " +
           options_.addresses[options_.me.rank] + ")";
  }
  std::string why = "no answer";
  for (const Dial& dial : dials_) {
    if (dial.peer == peer && !mesh_[peer][dial.stream] && !dial.failure.empty()) why = dial.failure;
  }
  return "rank " + std::to_string(peer) + " at " + address + " (" + why + ")";
}

void Formation::timed_out() const {
  constexpr int kDescribed = 4;
  std::string missing;
  int first = -1, count = 0;
  for (int peer = 0; peer < options_.me.world; ++peer) {
    const auto& streams = mesh_[peer];
    if (std::all_of(streams.begin(), streams.end(),
                    [](const Fd& fd) { return static_cast<bool>(fd); }))
      continue;
    if (first < 0) first = peer;
    if (++count <= kDescribed) missing += (missing.empty() ? "" : ", ") + absence_of(peer);
  }
  if (count > kDescribed) missing += " and " + std::to_string(count - kDescribed) + " more";
  std::string message = "no connection before the deadline with " + missing;
  if (refused_ > 0)
    message +=
        "; " + std::to_string(refused_) + " connections were refused, the last: " + last_refusal_;
  throw Error(Errc::kTimeout, message, {"connect", options_.me.rank, first});
}

}  // namespace weft::net::internal
