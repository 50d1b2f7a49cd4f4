#include "weft/ps/internal/client_link.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "weft/ps/internal/connections.h"

namespace weft::ps::internal {
namespace {

using namespace std::chrono_literals;
using net::internal::HandshakeConnection;

constexpr auto kLinkHandshake = 3s;
constexpr auto kLinkAgain = 10ms, kLinkRefused = 500ms;
// While answers are missing, the directory is asked this often who serves the shard.
constexpr auto kLinkCheck = 100ms;
constexpr auto kLinkDirectory = 500ms;
constexpr auto kLinkSilence = 10s;

}  // namespace

ClientLink::ClientLink(Settings settings, OnAnswer on_answer)
    : settings_(std::move(settings)), on_answer_(std::move(on_answer)) {}

void ClientLink::send(Outstanding outstanding) {
  outstanding_.push_back(std::move(outstanding));
  check_ = Deadline::in(kLinkCheck);
  if (stream_) {
    transmit(outstanding_.back());
    if (!stream_->flush()) lose("the connection was closed");
  }
}

void ClientLink::transmit(const Outstanding& outstanding) {
  Request request = outstanding.request;
  request.view = view_;
  const auto* const memory = reinterpret_cast<const char*>(settings_.memory->data());
  std::string_view payload = outstanding.payload;
  const bool is_shared = request.bytes > 0;
  request.in_memory = is_shared && is_local_;
  if (is_shared && !is_local_ && (request.op == Op::kPush || request.op == Op::kPushRows))
    payload = {memory + request.offset, static_cast<std::size_t>(request.bytes)};
  moved_.message_bytes += payload.size();
  if (request.in_memory) moved_.shared_bytes += request.bytes;
  // The payload stays as it is until the answer.
  stream_->send_in_place(encode_head(request, payload.size()), std::as_bytes(std::span(payload)));
}

int ClientLink::fd() const {
  if (stream_) return stream_->fd();
  return handshake_ ? handshake_->connection.fd() : -1;
}

short ClientLink::events() const {
  if (stream_) return stream_->queued() > 0 ? POLLIN | POLLOUT : POLLIN;
  return handshake_ && handshake_->connection.is_connecting() ? POLLOUT : POLLIN;
}

void ClientLink::lose(const std::string& why) {
  if (stream_ && is_local_) taints_memory_ = true;
  trouble_ = why;
  stream_.reset();
  handshake_.reset();
  again_ = Deadline::in(kLinkAgain);
}

bool ClientLink::reconnect() {
  taints_memory_ = false;
  if (!stream_ || !is_local_) return false;
  stream_.reset();
  again_ = Deadline::in(0ms);
  return true;
}

void ClientLink::begin() {
  again_ = Deadline::in(kLinkAgain);
  try {
    const auto views = settings_.directory->views(Deadline::in(kLinkDirectory));
    const auto view = views.find(settings_.shard);
    if (view == views.end() || view->second.members.empty()) {
      trouble_ = "no server has started to serve it";
      return;
    }
    view_ = std::max(view_, view->second.number);
    server_ = view->second.members[0];
    const std::uint32_t server = server_.server;
    const auto servers = settings_.directory->servers(Deadline::in(kLinkDirectory));
    const auto found = servers.find(server);
    if (found == servers.end()) {
      trouble_ = "server " + std::to_string(server) + " has no address yet";
      return;
    }
    const ServerAddress& address = found->second;
    if (settings_.local && !address.local.empty()) {
      if (UniqueFd fd = net::internal::connect_locally(address.local)) {
        if (net::internal::send_descriptor(fd.get(), settings_.memory->fd()))
          return established(std::move(fd), true);
      }
    }
    if (address.tcp.empty()) {
      trouble_ = "server " + std::to_string(server) + " does not answer on this host";
      return;
    }
    handshake_ = Handshake{"server " + std::to_string(server) + " at " + address.tcp,
                           HandshakeConnection(net::internal::begin_connect(address.tcp), 0, 0),
                           Deadline::in(kLinkHandshake)};
  } catch (const Error& error) {
    trouble_ = error.message();
  }
}

void ClientLink::established(UniqueFd fd, bool is_local) {
  is_local_ = is_local;
  stream_.emplace(std::move(fd), kMaxMessage);
  stream_->send(kClientGreeting);
  for (const Outstanding& one : outstanding_) transmit(one);
  check_ = Deadline::in(kLinkCheck);
  trouble_ = "the server has not answered; it may wait for a slower worker";
  if (!stream_->flush()) lose("the connection was closed");
}

// A server that is silent, but not dead, may have been replaced.
void ClientLink::check_view() {
  if (outstanding_.empty() || !check_.passed()) return;
  check_ = Deadline::in(kLinkCheck);
  try {
    const auto views = settings_.directory->views(Deadline::in(kLinkDirectory));
    const auto view = views.find(settings_.shard);
    if (view == views.end() || view->second.number <= view_) return;
    view_ = view->second.number;
    const std::vector<Member>& members = view->second.members;
    if (members.empty() || members[0] != server_) lose("another server serves it now");
  } catch (const Error& error) {
    trouble_ = error.message();
  }
}

void ClientLink::advance_handshake() {
  const auto result = handshake_->connection.advance(settings_.identity, {});
  if (result == HandshakeConnection::Result::kEstablished) {
    net::internal::Fd fd = handshake_->connection.take_fd();
    handshake_.reset();
    net::internal::set_options(fd, kLinkSilence);
    net::internal::fit_to_distance(fd);
    established(UniqueFd(fd.release()), false);
  } else if (result == HandshakeConnection::Result::kRefused) {
    lose(handshake_->where +
         " refuses this client: " + net::internal::explain(handshake_->connection.verdict()));
    again_ = Deadline::in(kLinkRefused);
  } else if (result == HandshakeConnection::Result::kLost || handshake_->by.passed()) {
    lose(handshake_->where + " does not answer: " + handshake_->connection.failure());
  }
}

void ClientLink::advance() {
  if (!stream_ && !handshake_ && again_.passed() && !outstanding_.empty()) begin();
  if (handshake_) advance_handshake();
  if (!stream_) return;
  std::vector<std::string> messages;
  bool is_open = false;
  try {
    is_open = stream_->flush() && stream_->receive(messages);
    for (std::string& message : messages) {
      take(message);
      if (stream_) stream_->give_spare(std::move(message));
    }
  } catch (const std::exception& error) {
    // Answers after this one are lost: their requests are sent again.
    lose("an answer cannot be used: " + weft::describe(error));
    throw;
  }
  if (!is_open && stream_) lose("the connection was closed");
  if (stream_) check_view();
}

void ClientLink::take(const std::string& message) {
  std::string_view payload;
  const Answer answer = decode_answer(message, &payload);
  if (!stream_) return;  // an answer before this one has ended the connection
  if (answer.outcome == Outcome::kElsewhere)
    return lose(answer.text.empty() ? "another server serves it" : answer.text);
  const auto found =
      std::find_if(outstanding_.begin(), outstanding_.end(),
                   [&](const Outstanding& one) { return one.request.id == answer.id; });
  if (found == outstanding_.end()) return;
  moved_.message_bytes += payload.size();
  const Outstanding done = std::move(*found);
  outstanding_.erase(found);
  on_answer_(done, answer, payload);
}

std::string ClientLink::trouble() const {
  return "shard " + std::to_string(settings_.shard) + ": " + trouble_;
}

}  // namespace weft::ps::internal
