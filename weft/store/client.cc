#include "weft/store/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "weft/base/random.h"
#include "weft/base/text/variables.h"
#include "weft/net/stream/local_socket.h"
#include "weft/store/internal/message_stream.h"

namespace weft::store {
namespace {

using internal::MessageStream;
using internal::Request;
using internal::Response;
using namespace std::chrono_literals;

// An answer that lists the whole store, with its keys.
constexpr std::size_t kMaxResponse = 2 * kMaxStoreBytes;
// Time after which a socket on which nobody listens is given up: its launcher has ended.
constexpr auto kNobodyListens = 1s;
// The store process answers so long before the deadline, with the reason.
constexpr std::chrono::nanoseconds kForItsReason = 100ms;
// Time before the next try if the store process has closed several connections of a call.
constexpr auto kPause = 10ms;

// Reasons of no_answer().
constexpr const char* kIsBusy = "it is busy, or has been stopped";
constexpr const char* kCloses = "it closes the connection";

struct LocalAddress {
  sockaddr_un storage{};
  socklen_t length = 0;
};

LocalAddress address_of(const std::string& name) {
  LocalAddress address;
  address.storage.sun_family = AF_UNIX;
  WEFT_REQUIRE(!name.empty() && name.size() < sizeof address.storage.sun_path,
               "the store's socket '" + name.substr(0, 200) +
                   "' is not the name of a socket: 1 to 107 bytes, in " + kStoreVariable);
  std::memcpy(address.storage.sun_path, name.data(), name.size());
  if (name[0] == '@') address.storage.sun_path[0] = '\0';
  address.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name[0] != '@'));
  return address;
}

Error no_answer(const std::string& socket, const std::string& reason) {
  return Error(Errc::kTimeout,
               "the store process at " + socket + " did not answer before the deadline: " + reason,
               {"store", -1, -1});
}

}  // namespace

LocalListener listen_locally() {
  auto [fd, name] = net::internal::listen_locally("store");
  return {std::move(fd), std::move(name)};
}

// One connection, used by one call at a time.
class Client::Session {
 public:
  explicit Session(const std::string& socket) : socket_(socket), client_(random_number()) {}

  pid_t owner() const { return owner_; }

  Response call(Request& request, Deadline deadline) {
    request.client = client_;
    request.sequence = ++sequence_;
    for (int ended = 0;; ++ended) {
      // The first connection may end with its store process. A process that closes the next ones
      // too refuses this client, or cannot serve it.
      if (ended > 1) {
        std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kPause, deadline.left()));
        if (deadline.passed()) throw no_answer(socket_, kCloses);
      }
      if (!stream_) connect(deadline, ended == 0);
      if (auto response = attempt(request, deadline, ended > 1 ? kCloses : kIsBusy))
        return std::move(*response);
      stream_.reset();
    }
  }
  // Ends the connection, since an answer may still come on it.
  void disconnect() { stream_.reset(); }

  // Tells the store process, without waiting, that no request of this session will come again.
  void end() {
    if (!stream_ || sequence_ == 0) return;
    stream_->send(encode(
        Request{.op = internal::Op::kEndSession, .client = client_, .sequence = sequence_ + 1}));
    stream_->flush();
  }

 private:
  // None if the connection has ended. `trouble`: the reason if there is no answer.
  std::optional<Response> attempt(Request& request, Deadline deadline, const char* trouble) {
    const auto left = deadline.left() - std::min(deadline.left() / 10, kForItsReason);
    request.wait_ms = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
    stream_->send(encode(request));
    for (std::vector<std::string> messages;;) {
      if (!stream_->flush() || !stream_->receive(messages)) return std::nullopt;
      for (const std::string& message : messages) {
        Response response = internal::decode_response(message);
        if (response.sequence == request.sequence) return response;
      }
      messages.clear();
      if (deadline.passed()) throw no_answer(socket_, trouble);
      wait_for(stream_->queued() > 0 ? POLLIN | POLLOUT : POLLIN, deadline);
    }
  }

  void wait_for(short events, Deadline deadline) const {
    pollfd ready{stream_->fd(), events, 0};
    ::poll(&ready, 1, deadline.left_ms());
  }

  // `first`: of this call. Later ones wait for the next store process.
  void connect(Deadline deadline, bool first) {
    const LocalAddress address = address_of(socket_);
    const Deadline patience =
        Deadline::at(std::min(deadline.when(), Deadline::in(kNobodyListens).when()));
    for (auto pause = first ? 1ms : 2ms;; pause = std::min(2 * pause, 20ms)) {
      UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd) throw Error(Errc::kUnavailable, std::string("no socket: ") + std::strerror(errno));
      if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                    address.length) == 0) {
        stream_.emplace(std::move(fd), kMaxResponse);
        return;
      }
      const int error = errno;  // EAGAIN: the queue of the socket is full
      if (error != EAGAIN && error != EINTR && error != ECONNREFUSED && error != ENOENT)
        throw Error(Errc::kUnavailable,
                    "the store's socket " + socket_ + " cannot be used: " + std::strerror(error));
      const bool is_full = error == EAGAIN || error == EINTR;
      if (is_full && deadline.passed())
        throw no_answer(socket_, "it accepts no connection, and the queue of its socket is full");
      if (!is_full && patience.passed())
        throw Error(Errc::kUnavailable,
                    "nobody listens on the store's socket " + socket_ +
                        "; check whether the launcher of this node has ended",
                    {"store", -1, -1});
      std::this_thread::sleep_for(pause);
    }
  }

  const std::string socket_;
  const std::uint64_t client_;
  const pid_t owner_ = ::getpid();
  std::uint64_t sequence_ = 0;
  std::optional<MessageStream> stream_;
};

Client::Client(std::string socket) : socket_(std::move(socket)) { address_of(socket_); }

Client::~Client() {
  for (const auto& session : idle_) {
    if (session->owner() == ::getpid()) session->end();
  }
}

std::optional<std::string> Client::environment() {
  const char* const socket = variable_or_null(kStoreVariable);
  return socket != nullptr ? std::optional<std::string>(socket) : std::nullopt;
}

StoreStatus Client::status(Deadline deadline) {
  const Response response = call({.op = internal::Op::kStatus}, deadline);
  if (!response.value)
    throw Error(Errc::kUnavailable, "the store has no status: " + response.text, {"store", -1, -1});
  return internal::decode_status(response.value->bytes);
}

std::unique_ptr<Client::Session> Client::take_session() {
  const std::lock_guard lock(mutex_);
  std::erase_if(idle_, [](const auto& session) { return session->owner() != ::getpid(); });
  if (idle_.empty()) return std::make_unique<Session>(socket_);
  auto session = std::move(idle_.back());
  idle_.pop_back();
  return session;
}

Response Client::call(Request request, Deadline deadline) {
  auto session = take_session();
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(session));
  };
  try {
    Response response = session->call(request, deadline);
    give_back();
    return response;
  } catch (...) {
    session->disconnect();
    give_back();
    throw;
  }
}

}  // namespace weft::store
