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
      pending_.push_back({begin_connect(address), State::kConnecting,
                          Deadline::in(options_.handshake_timeout), address, dial.peer,
                          dial.stream});
      dial.under_way = true;
    } catch (const Error& error) {
      if (error.code() != Errc::kUnavailable) throw;
      dial.failure = error.message();  // retried until the deadline
    }
  }
}

void Formation::poll_once(Deadline deadline) {
  std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
  for (const Pending& p : pending_)
    fds.push_back(
        {p.fd.get(), static_cast<short>(p.state == State::kConnecting ? POLLOUT : POLLIN), 0});
  const auto wait = std::min<int>(deadline.left_ms(), 20);
  if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) {
    throw Error(Errc::kInternal, "poll failed: " + errno_text(errno));
  }
  std::size_t i = 1;
  for (auto p = pending_.begin(); p != pending_.end(); ++i) {
    const auto next = std::next(p);
    if (fds[i].revents != 0 && !advance(*p)) {
      release_dial(*p);
      pending_.erase(p);
    }
    p = next;
  }
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
      const auto oldest = std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) {
        return p.state == State::kHello || p.state == State::kProof;
      });
      if (oldest != pending_.end()) pending_.erase(oldest);
      if (exhausted || pending_.size() >= limit_) return;
    }
    pending_.push_back(
        {std::move(fd), State::kHello, Deadline::in(options_.handshake_timeout), from});
  }
}

void Formation::expire() {
  for (auto p = pending_.begin(); p != pending_.end();) {
    const auto next = std::next(p);
    if (p->deadline.passed()) {
      if (p->state == State::kHello || p->state == State::kProof) refuse(*p, Verdict::kMalformed);
      p->failure =
          p->state == State::kConnecting ? "no answer" : "the handshake did not end in time";
      release_dial(*p);
      pending_.erase(p);
    }
    p = next;
  }
}

Formation::Step Formation::advance(Pending& p) {
  return p.state == State::kHello || p.state == State::kProof ? advance_accepted(p)
                                                              : advance_dialed(p);
}

// Reads until `want` bytes are available, never more than the expected message.
bool Formation::receive(Pending& p, std::size_t want, Step& alive) {
  while (p.have < want) {
    const auto n = ::recv(p.fd.get(), p.buffer.data() + p.have, want - p.have, 0);
    if (n > 0) {
      p.have += static_cast<std::size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    alive = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return false;
  }
  p.have = 0;
  return true;
}

// Messages fit into an empty socket buffer. A socket that does not accept them is closed.
bool Formation::write(Pending& p, std::span<const std::byte> bytes) {
  return ::send(p.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

Formation::Step Formation::advance_accepted(Pending& p) {
  Step alive = true;
  if (p.state == State::kHello) {
    if (!receive(p, kHelloBytes, alive)) {
      // Foreign connections are detected by their first bytes, without waiting for the rest.
      const bool stranger =
          p.have >= kMagicBytes && !has_hello_magic(std::span(p.buffer).first<kMagicBytes>());
      if (stranger || !alive) refuse(p, Verdict::kMalformed);
      return alive && !stranger;
    }
    p.hello = p.buffer;
    const HelloCheck check = check_hello(options_.me, p.hello);
    const bool taken = check.verdict == Verdict::kWelcome && mesh_[check.from][check.stream];
    const Verdict verdict = taken ? Verdict::kTaken : check.verdict;
    p.reply = make_reply(options_.me, p.hello, verdict, fresh_nonce());
    const bool written = write(p, p.reply);
    if (verdict != Verdict::kWelcome) refuse(p, verdict);
    if (verdict != Verdict::kWelcome || !written) return false;
    p.peer = check.from;
    p.stream = check.stream;
    p.state = State::kProof;
  }
  if (!receive(p, kProofBytes, alive)) {
    if (!alive) refuse(p, Verdict::kMalformed);
    return alive;
  }
  const bool proved =
      check_proof(options_.me, p.hello, p.reply, std::span(p.buffer).first<kProofBytes>());
  const Verdict verdict = !proved                   ? Verdict::kSecret
                          : mesh_[p.peer][p.stream] ? Verdict::kTaken
                                                    : Verdict::kWelcome;
  const bool written = write(p, make_done(verdict));
  if (verdict != Verdict::kWelcome) {
    refuse(p, verdict);
  } else if (written) {
    established(p);
  }
  return false;
}

Formation::Step Formation::advance_dialed(Pending& p) {
  Step alive = true;
  p.failure = "the connection was closed";
  if (p.state == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(p.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      p.failure = errno_text(error);
      return false;
    }
    p.hello = make_hello(options_.me, p.peer, p.stream, fresh_nonce());
    p.state = State::kReply;
    return write(p, p.hello);
  }
  if (p.state == State::kReply) {
    if (!receive(p, kReplyBytes, alive)) return alive;
    std::copy_n(p.buffer.begin(), kReplyBytes, p.reply.begin());
    const Verdict verdict = check_reply(options_.me, p.hello, p.reply);
    // A peer without a valid proof gets no proof from this side, only the message that the secrets
    // differ.
    if (verdict == Verdict::kSecret) write(p, Proof{});
    if (verdict != Verdict::kWelcome) refused_by(p, verdict);
    p.state = State::kDone;
    return write(p, make_proof(options_.me, p.hello, p.reply));
  }
  if (!receive(p, kDoneBytes, alive)) return alive;
  const Verdict verdict = check_done(std::span(p.buffer).first<kDoneBytes>());
  if (verdict != Verdict::kWelcome) refused_by(p, verdict);
  established(p);
  return false;
}

void Formation::established(Pending& p) { mesh_[p.peer][p.stream] = std::move(p.fd); }

// A dialed connection that failed is retried.
void Formation::release_dial(const Pending& p) {
  for (Dial& dial : dials_) {
    if (dial.peer != p.peer || dial.stream != p.stream) continue;
    dial.under_way = static_cast<bool>(mesh_[p.peer][p.stream]);
    dial.again = Deadline::Clock::now() + kDialAgain;
    dial.failure = p.failure;
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
  const bool retry = verdict == Verdict::kEpoch || verdict == Verdict::kMalformed;
  throw Error(retry ? Errc::kUnavailable : Errc::kBadConfig,
              "rank " + std::to_string(p.peer) + " at " + p.where +
                  " cannot be joined: " + explain(verdict),
              {"connect", options_.me.rank, p.peer});
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
