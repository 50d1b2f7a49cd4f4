#include "weft/ps/internal/connections.h"

#include <fcntl.h>

#include <cerrno>

#include "weft/base/log.h"

namespace weft::ps::internal {
namespace {

using namespace std::chrono_literals;
using net::internal::Fd;
using net::internal::HandshakeConnection;
using net::internal::MessageStream;
using net::internal::Polls;
using net::internal::SharedMemory;

constexpr auto kHandshake = 5s;
constexpr auto kDialAgain = 50ms;
// Unacknowledged data for this long ends a connection.
constexpr auto kSilence = 4s;
constexpr std::size_t kMaxPending = 64;
// Messages that a slow server has not taken. Beyond it, messages are lost, and sent again later.
constexpr std::size_t kMaxUnsent = std::size_t{256} << 20;

bool is_out_of_descriptors() { return errno == EMFILE || errno == ENFILE; }

}  // namespace

net::internal::Identity identity(const std::string& job,
                                 const std::optional<net::internal::Secret>& secret, int rank) {
  net::internal::Identity identity;
  identity.job = "weft ps " + job;
  identity.rank = rank;
  identity.world = 2;
  identity.secret = secret;
  return identity;
}

Connections::Connections(Listeners listeners, net::internal::Identity accepts,
                         net::internal::Identity dials, Events events)
    : listeners_(std::move(listeners)),
      accepts_(std::move(accepts)),
      dials_(std::move(dials)),
      events_(std::move(events)) {}

void Connections::watch(Polls& polls) {
  if (accepts_again_.passed()) {
    polls.add(listeners_.local.fd.get(), POLLIN, [this] { accept_local(); });
    if (listeners_.tcp) polls.add(listeners_.tcp.get(), POLLIN, [this] { accept_tcp(); });
  }
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    if (pending->shake) {
      const short events = pending->shake->is_connecting() ? POLLOUT : POLLIN;
      polls.add(pending->shake->fd(), events, [this, pending] { advance_tcp(pending); });
    } else {
      polls.add(pending->local.get(), POLLIN, [this, pending] { advance_local(pending); });
    }
  }
  for (const auto& [token, one] : accepted_) {
    const short events = one.stream.queued() > 0 ? POLLIN | POLLOUT : POLLIN;
    polls.add(one.stream.fd(), events, [this, token = token] { serve(token); });
  }
  for (const auto& [server, peer] : peers_) {
    if (!peer.stream) continue;
    const short events = peer.stream->queued() > 0 ? POLLIN | POLLOUT : POLLIN;
    polls.add(peer.stream->fd(), events, [this, server = server] { serve_peer(server); });
  }
}

// Says the same only once in 10 seconds.
void Connections::report(const std::string& line) {
  const auto [said, is_new] = reported_.emplace(line, Deadline::in(10s));
  if (!is_new && !said->second.passed()) return;
  said->second = Deadline::in(10s);
  if (reported_.size() > 100) reported_.clear();
  log_warn(line);
}

void Connections::tend() {
  for (auto next = pending_.begin(); next != pending_.end();) {
    const auto pending = next++;
    if (!pending->deadline.passed()) continue;
    if (pending->server) peers_[*pending->server].under_way = false;
    pending_.erase(pending);
  }
}

void Connections::accept_local() {
  while (pending_.size() < kMaxPending) {
    UniqueFd fd = net::internal::accept_own_user(listeners_.local.fd.get(), "the parameter server");
    if (!fd) {
      if (is_out_of_descriptors()) accepts_again_ = Deadline::in(100ms);
      return;
    }
    pending_.push_back({std::move(fd), nullptr, Deadline::in(kHandshake), "this host", {}});
  }
  accepts_again_ = Deadline::in(20ms);
}

void Connections::accept_tcp() {
  while (pending_.size() < kMaxPending) {
    std::string from;
    int error = 0;
    Fd fd = net::internal::accept_on(listeners_.tcp, from, error);
    if (!fd) {
      if (error == EMFILE || error == ENFILE) accepts_again_ = Deadline::in(100ms);
      return;
    }
    pending_.push_back({UniqueFd(),
                        std::make_unique<HandshakeConnection>(std::move(fd)),
                        Deadline::in(kHandshake),
                        from,
                        {}});
  }
  // Strangers that say nothing must not keep workers out: the oldest one is dropped.
  accepts_again_ = Deadline::in(20ms);
  for (Pending& one : pending_) {
    if (one.server) continue;
    one.deadline = Deadline::in(0ms);
    break;
  }
}

void Connections::advance_local(PendingAt pending) {
  net::internal::FirstByte first = net::internal::receive_descriptor(pending->local.get());
  if (!first.arrived && !first.ended) return;
  try {
    if (first.arrived)
      open(std::move(pending->local),
           first.fd ? SharedMemory::attach(std::move(first.fd)) : SharedMemory());
  } catch (const Error& error) {
    log_warn("the parameter server drops a client: " + error.message());
  }
  pending_.erase(pending);
}

void Connections::advance_tcp(PendingAt pending) {
  HandshakeConnection& shake = *pending->shake;
  const bool accepted = shake.is_accepted();
  const auto result = shake.advance(accepted ? accepts_ : dials_, {});
  if (result == HandshakeConnection::Result::kWaits) return;
  if (result == HandshakeConnection::Result::kEstablished) {
    Fd fd = shake.take_fd();
    net::internal::set_options(fd, kSilence);
    net::internal::fit_to_distance(fd);
    UniqueFd own(fd.release());
    if (accepted)
      open(std::move(own), {});
    else
      greet(peers_[*pending->server], std::move(own));
  } else if (result == HandshakeConnection::Result::kRefused) {
    report(std::string("the parameter server ") +
           (accepted ? "refuses a connection from " : "is refused by the server at ") +
           pending->where + ": " + net::internal::explain(shake.verdict()));
  }
  if (pending->server) {
    peers_[*pending->server].under_way = false;
    peers_[*pending->server].again = Deadline::in(kDialAgain);
  }
  pending_.erase(pending);
}

void Connections::open(UniqueFd fd, SharedMemory memory) {
  const Token token = ++last_;
  accepted_.emplace(token, Accepted{MessageStream(std::move(fd), kMaxMessage), std::move(memory)});
  serve(token);
}

void Connections::serve(Token token) {
  const auto found = accepted_.find(token);
  if (found == accepted_.end()) return;
  Accepted& one = found->second;
  std::vector<std::string> messages;
  bool is_open = false;
  try {
    is_open = one.stream.flush() && one.stream.receive(messages);
    for (std::string& message : messages) {
      if (one.kind == Kind::kUnknown) {
        if (message != kClientGreeting && message != kServerGreeting)
          throw Error(Errc::kCorrupt, "it speaks another version of the protocol");
        one.kind = message == kClientGreeting ? Kind::kClient : Kind::kServer;
      } else if (one.kind == Kind::kClient) {
        events_.request(token, message);
      } else {
        events_.chain(message);
      }
      one.stream.give_spare(std::move(message));
    }
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    log_warn("the parameter server drops a connection: " + error.message());
    is_open = false;
  }
  if (!is_open) drop(token);
}

void Connections::drop(Token token) {
  const auto found = accepted_.find(token);
  if (found == accepted_.end()) return;
  // The client's memory goes with the connection.
  if (found->second.kind == Kind::kClient) events_.gone(token);
  accepted_.erase(found);
}

void Connections::answer(Token token, Answer answer) {
  const auto found = accepted_.find(token);
  if (found == accepted_.end()) return;
  found->second.stream.send(encode_head(answer), std::move(answer.payload));
  found->second.stream.flush();  // serve() notices the end of a connection
}

std::span<std::byte> Connections::memory(Token token) const {
  const auto found = accepted_.find(token);
  if (found == accepted_.end()) return {};
  return {found->second.memory.data(), found->second.memory.size()};
}

std::string Connections::take_spare(Token token) {
  const auto found = accepted_.find(token);
  return found == accepted_.end() ? std::string() : found->second.stream.take_spare();
}

void Connections::dial(std::uint32_t server, const ServerAddress& address) {
  Peer& peer = peers_[server];
  if (peer.under_way || !peer.again.passed()) return;
  peer.again = Deadline::in(kDialAgain);
  if (!address.local.empty()) {
    if (UniqueFd fd = net::internal::connect_locally(address.local)) {
      if (net::internal::send_descriptor(fd.get(), -1)) greet(peer, std::move(fd));
      return;
    }
  }
  if (address.tcp.empty()) return;
  try {
    pending_.push_back(
        {UniqueFd(),
         std::make_unique<HandshakeConnection>(net::internal::begin_connect(address.tcp), 0, 0),
         Deadline::in(kHandshake), address.tcp, server});
    peer.under_way = true;
  } catch (const Error&) {
    // Nobody listens there now. The next message tries again.
  }
}

void Connections::greet(Peer& peer, UniqueFd fd) {
  peer.stream.emplace(std::move(fd), kMaxMessage);
  peer.stream->send(kServerGreeting);
  if (!peer.stream->flush()) peer.stream.reset();
}

// Nothing comes on a connection that this side has dialed, but its end.
void Connections::serve_peer(std::uint32_t server) {
  Peer& peer = peers_[server];
  if (!peer.stream) return;
  std::vector<std::string> messages;
  if (!peer.stream->flush() || !peer.stream->receive(messages)) peer.stream.reset();
}

void Connections::send(std::uint32_t server, const ServerAddress& address, std::string message) {
  if (!peers_[server].stream) dial(server, address);
  Peer& peer = peers_[server];
  if (!peer.stream || peer.stream->queued() > kMaxUnsent) return;
  peer.stream->send(std::move(message));
  if (!peer.stream->flush()) peer.stream.reset();
}

}  // namespace weft::ps::internal
