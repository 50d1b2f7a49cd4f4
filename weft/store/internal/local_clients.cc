#include "weft/store/internal/local_clients.h"

#include <cerrno>

#include "weft/base/log.h"
#include "weft/net/stream/local_socket.h"

namespace weft::store::internal {
namespace {

// Answers that a client does not read. Beyond it, the client is dropped.
constexpr std::size_t kMaxUnread = 4 * kMaxStoreBytes;

}  // namespace

UniqueFd accept_own_user(int listener) {
  return net::internal::accept_own_user(listener, "the store");
}

LocalClients::LocalClients(UniqueFd listener, Events events)
    : listener_(std::move(listener)), events_(std::move(events)) {}

void LocalClients::watch(Polls& polls) {
  if (accepts_again_.passed()) polls.add(listener_.get(), POLLIN, [this] { accept_all(); });
  for (const auto& [token, stream] : clients_) {
    const short events = stream.queued() > 0 ? POLLIN | POLLOUT : POLLIN;
    polls.add(stream.fd(), events, [this, token = token] { serve(token); });
  }
}

void LocalClients::accept_all() {
  for (;;) {
    UniqueFd fd = accept_own_user(listener_.get());
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE)
        accepts_again_ = Deadline::in(std::chrono::milliseconds(100));
      return;
    }
    const Token token = ++last_;
    clients_.emplace(token, MessageStream(std::move(fd), kMaxRequestBytes));
    serve(token);
  }
}

void LocalClients::serve(Token token) {
  const auto client = clients_.find(token);
  if (client == clients_.end()) return;
  std::vector<std::string> messages;
  bool open = false;
  try {
    open = client->second.flush() && client->second.receive(messages);
    for (const std::string& message : messages) {
      const Request request = decode_request(message);
      check_limits(request);
      events_.request(token, request);
    }
  } catch (const Error& error) {
    log_warn("the store drops a client: " + error.message());
    open = false;
  }
  if (!open) drop(token);
}

void LocalClients::answer(Token token, const Response& response) {
  const auto client = clients_.find(token);
  if (client == clients_.end()) return;
  client->second.send(encode(response));
  if (!client->second.flush() || client->second.queued() > kMaxUnread) drop(token);
}

void LocalClients::drop(Token token) {
  clients_.erase(token);
  events_.gone(token);
}

}  // namespace weft::store::internal
