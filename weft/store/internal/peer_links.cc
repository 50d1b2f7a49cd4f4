#include "weft/store/internal/peer_links.h"

#include <algorithm>
#include <cerrno>

#include "weft/base/log.h"

namespace weft::store::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kHandshake = 5s;
// Unacknowledged data for this long ends a connection.
constexpr auto kSilence = 4s;
constexpr std::size_t kMaxPending = 64;
// Messages that a slow peer has not taken. Beyond it, messages are lost, and sent again later.
constexpr std::size_t kMaxUnsent = std::size_t{64} << 20;
// A node dials the nodes with lower numbers at once, and others only if they do not dial.
constexpr auto kTheirTurn = 300ms;
// A connection on which a message has come within this time is alive.
constexpr auto kFresh = 1s;

// The roles of the handshake: nodes are named by their greetings.
net::internal::Identity identity(const PeerOptions& options, int rank) {
  net::internal::Identity identity;
  identity.job = "weft store " + options.job;
  identity.rank = rank;
  identity.world = 2;
  identity.secret = options.secret;
  return identity;
}

std::chrono::milliseconds pause_after(int failures) {
  return std::min<std::chrono::milliseconds>(20ms * (1 << std::min(failures, 6)), 500ms);
}

}  // namespace

PeerLinks::PeerLinks(PeerOptions options, Events events)
    : options_(std::move(options)),
      events_(std::move(events)),
      accepts_as_(identity(options_, 0)),
      dials_as_(identity(options_, 1)) {}

void PeerLinks::want(std::map<std::uint32_t, std::string> nodes, bool seeks) {
  for (const auto& [node, address] : nodes) {
    if (wanted_.contains(node) || node < options_.node || seeks) continue;
    dials_[address].again = Deadline::in(kTheirTurn);
  }
  wanted_ = std::move(nodes);
  seeks_ = seeks;
}

void PeerLinks::tend() {
  if (!options_.listener) return;
  for (const auto& [node, address] : wanted_) {
    if (!link_of_.contains(node)) dial(address);
  }
  for (const std::string& address : options_.seeds) {
    const auto known = node_at_.find(address);
    const bool is_linked = known != node_at_.end() && link_of_.contains(known->second);
    if (seeks_ && !is_linked && address != options_.address) dial(address);
  }
  for (auto next = pending_.begin(); next != pending_.end();) {
    const auto pending = next++;
    if (pending->deadline.passed()) finish(pending, pending->where + ": no answer");
  }
  std::vector<LinkId> silent;
  for (const auto& [id, link] : links_) {
    if (!link.node && link.greets_by.passed()) silent.push_back(id);
  }
  for (const LinkId id : silent) close(id);
}

void PeerLinks::dial(const std::string& address) {
  Dial& dial = dials_[address];
  if (dial.under_way || !dial.again.passed()) return;
  try {
    pending_.push_back({HandshakeConnection(net::internal::begin_connect(address), 0, 0),
                        Deadline::in(kHandshake), address});
    dial.under_way = true;
  } catch (const Error& error) {
    dial.again = Deadline::in(pause_after(++dial.failures));
    events_.trouble(error.message());
    if (error.code() == Errc::kInvalidArgument) report(error.message());
  }
}

void PeerLinks::watch(Polls& polls) {
  if (!options_.listener) return;
  if (accepts_again_.passed()) polls.add(options_.listener.get(), POLLIN, [this] { accept_all(); });
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    const short events = pending->shake.is_connecting() ? POLLOUT : POLLIN;
    polls.add(pending->shake.fd(), events, [this, pending] { advance(pending); });
  }
  for (const auto& [id, link] : links_) {
    const short events = link.stream.queued() > 0 ? POLLIN | POLLOUT : POLLIN;
    polls.add(link.stream.fd(), events, [this, id = id] { serve(id); });
  }
}

void PeerLinks::accept_all() {
  while (pending_.size() < kMaxPending) {
    std::string from;
    int error = 0;
    net::internal::Fd fd = net::internal::accept_on(options_.listener, from, error);
    if (!fd) {
      if (error == EMFILE || error == ENFILE) accepts_again_ = Deadline::in(100ms);
      return;
    }
    pending_.push_back({HandshakeConnection(std::move(fd)), Deadline::in(kHandshake), from});
  }
  // Strangers that say nothing must not keep nodes out: the next call drops the oldest one.
  const auto oldest = std::find_if(pending_.begin(), pending_.end(),
                                   [](const Pending& one) { return one.shake.is_accepted(); });
  if (oldest == pending_.end())
    accepts_again_ = Deadline::in(100ms);
  else
    oldest->deadline = Deadline::in(0ms);
}

void PeerLinks::advance(std::list<Pending>::iterator pending) {
  const bool accepted = pending->shake.is_accepted();
  switch (pending->shake.advance(accepted ? accepts_as_ : dials_as_, {})) {
    case HandshakeConnection::Result::kWaits: return;
    case HandshakeConnection::Result::kEstablished: open(*pending); return finish(pending, "");
    case HandshakeConnection::Result::kRefused: return finish(pending, refused(*pending));
    case HandshakeConnection::Result::kLost:
      return finish(pending, pending->where + ": " + pending->shake.failure());
  }
}

// Ends the handshake. `failure` empty: it succeeded.
void PeerLinks::finish(std::list<Pending>::iterator pending, const std::string& failure) {
  if (!pending->shake.is_accepted()) {
    Dial& dial = dials_[pending->where];
    dial.under_way = false;
    dial.failures = failure.empty() ? 0 : dial.failures + 1;
    dial.again = Deadline::in(pause_after(dial.failures));
    if (!failure.empty()) events_.trouble(failure);
  }
  pending_.erase(pending);
}

// Reports why, and returns it.
std::string PeerLinks::refused(const Pending& pending) {
  const std::string why = net::internal::explain(pending.shake.verdict());
  const std::string node = "node " + std::to_string(options_.node);
  const std::string line =
      pending.shake.is_accepted()
          ? node + " refuses a connection to the job's store from " + pending.where + ": " + why
          : node + " cannot join the job's store at " + pending.where + ": " + why;
  report(line);
  return line;
}

// Says the same only once in 10 seconds.
void PeerLinks::report(const std::string& line) {
  const auto [said, is_new] = reported_.emplace(line, Deadline::in(10s));
  if (!is_new && !said->second.passed()) return;
  said->second = Deadline::in(10s);
  if (reported_.size() > 100) reported_.clear();
  log_warn(line);
}

void PeerLinks::open(Pending& pending) {
  net::internal::Fd fd = pending.shake.take_fd();
  net::internal::set_options(fd, kSilence);
  const LinkId id = ++last_;
  const auto link = links_.emplace(
      id, Link{MessageStream(UniqueFd(fd.release()), kMaxMessage), pending.where,
               !pending.shake.is_accepted(), Deadline::in(kHandshake), Deadline::in(kFresh)});
  MessageStream& stream = link.first->second.stream;
  stream.send(encode(Greeting{.node = options_.node, .address = options_.address}));
  if (!stream.flush()) close(id);
}

void PeerLinks::serve(LinkId id) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  std::vector<std::string> messages;
  bool is_open = false;
  try {
    is_open = link->second.stream.flush() && link->second.stream.receive(messages);
    for (const std::string& message : messages) {
      if (!link->second.node) {
        greet(id, message);
        if (!links_.contains(id)) return;
        continue;
      }
      link->second.fresh = Deadline::in(kFresh);
      events_.message(*link->second.node, decode_message(message));
    }
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    report("the store's connection to " + link->second.where + " ends: " + error.message());
    is_open = false;
  }
  if (!is_open) close(id);
}

// Of two connections with a node, both keep the one that the higher node dialed.
bool PeerLinks::prefers(const Link& link, std::uint32_t node) const {
  return link.dialed == (options_.node > node);
}

// The first message names the peer. A node that has a connection already has dialed at the same
// time, or was restarted; then nothing has come on the older one for a while.
void PeerLinks::greet(LinkId id, std::string_view bytes) {
  const Greeting greeting = decode_greeting(bytes);
  Link& link = links_.at(id);
  if (greeting.version != Greeting::kVersion) {
    report("node " + std::to_string(options_.node) + " refuses the store process at " + link.where +
           ", which speaks version " + std::to_string(greeting.version) +
           " of the store's protocol instead of " + std::to_string(Greeting::kVersion) +
           "; run the same version of weft on every node");
    return close(id);
  }
  if (greeting.node == options_.node) {
    report("another store process, at " + link.where + ", has the number of node " +
           std::to_string(options_.node) + "; give every node its own number");
    return close(id);
  }
  if (const auto old = link_of_.find(greeting.node); old != link_of_.end()) {
    const Link& other = links_.at(old->second);
    const bool wins = prefers(link, greeting.node) && !prefers(other, greeting.node);
    if (!wins && !other.fresh.passed()) return close(id);
    close(old->second);
  }
  link.node = greeting.node;
  link_of_[greeting.node] = id;
  node_at_[link.where] = node_at_[greeting.address] = greeting.node;
  events_.connected(greeting.node);
}

void PeerLinks::close(LinkId id) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  const auto node = link->second.node;
  links_.erase(link);
  if (!node) return;
  link_of_.erase(*node);
  const auto wanted = wanted_.find(*node);
  if (wanted != wanted_.end() && *node > options_.node)
    dials_[wanted->second].again = Deadline::in(kTheirTurn);
  events_.disconnected(*node);
}

void PeerLinks::send(std::uint32_t node, const Message& message) {
  const auto id = link_of_.find(node);
  if (id == link_of_.end()) return;
  MessageStream& stream = links_.at(id->second).stream;
  if (stream.queued() > kMaxUnsent) return;
  stream.send(encode(message));
  if (!stream.flush()) close(id->second);
}

}  // namespace weft::store::internal
