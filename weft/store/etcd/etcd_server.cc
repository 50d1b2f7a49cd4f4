#include "weft/store/etcd/etcd_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/store/etcd/etcd.h"
#include "weft/store/internal/local_clients.h"
#include "weft/store/internal/message_stream.h"

namespace weft::store {
namespace {

using internal::MessageStream;
using internal::Request;

constexpr std::size_t kMaxConnections = 512;

// One connection of a client, served by a thread of its own.
class Connection {
 public:
  Connection(Etcd& etcd, UniqueFd fd)
      : etcd_(etcd),
        stream_(std::move(fd), internal::kMaxRequestBytes),
        thread_([this] { serve(); }) {}

  bool has_ended() const { return ended_; }

 private:
  void serve() {
    try {
      while (step()) {
      }
    } catch (const std::exception& error) {
      log_warn("the store drops a client: " + describe(error));
    }
    ended_ = true;
  }

  // Waits for requests and answers them. Returns false at the end of the connection.
  bool step() {
    wait(POLLIN);
    std::vector<std::string> messages;
    if (!stream_.receive(messages)) return false;
    for (const std::string& message : messages) {
      const Request request = internal::decode_request(message);
      check_limits(request);
      const auto response =
          etcd_.execute(request, Deadline::in(std::chrono::milliseconds(request.wait_ms)),
                        [this] { return is_gone(); });
      if (request.op == internal::Op::kEndSession) continue;
      stream_.send(encode(response));
      while (stream_.queued() > 0) {
        if (!stream_.flush()) return false;
        if (stream_.queued() > 0) wait(POLLOUT);
      }
    }
    return true;
  }

  // A client that reads nothing, or an idle one, holds only its own thread.
  void wait(short events) const {
    pollfd ready{stream_.fd(), events, 0};
    while (::poll(&ready, 1, 1000) <= 0) {
    }
  }

  bool is_gone() const {
    pollfd state{stream_.fd(), POLLRDHUP, 0};
    return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

  Etcd& etcd_;
  MessageStream stream_;
  std::atomic<bool> ended_ = false;
  std::jthread thread_;  // last, so that it ends first
};

bool has_closed(int lifeline) {
  char byte = 0;
  const ssize_t got = ::read(lifeline, &byte, 1);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

void serve_etcd(EtcdServerOptions options) {
  Etcd etcd(parse_etcd_url(options.url));
  for (const int fd : {options.clients.get(), options.lifeline.get()})
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  std::list<Connection> connections;
  for (;;) {
    connections.remove_if([](const Connection& one) { return one.has_ended(); });
    const bool full = connections.size() >= kMaxConnections;
    pollfd ready[2] = {{options.lifeline.get(), POLLIN, 0},
                       {full ? -1 : options.clients.get(), POLLIN, 0}};
    ::poll(ready, 2, 1000);
    if (ready[0].revents != 0 && has_closed(options.lifeline.get())) ::_exit(0);
    if (ready[1].revents == 0) continue;
    UniqueFd fd = internal::accept_own_user(options.clients.get());
    try {
      if (fd) connections.emplace_back(etcd, std::move(fd));
    } catch (const std::exception& error) {  // no thread left
      log_warn("the store cannot serve another client: " + describe(error));
    }
  }
}

}  // namespace weft::store
