// Store of the job, for ranks and launchers: asks the store process of this node over a Unix
// socket.
//
//   Client store(Client::environment().value());        // WEFT_STORE
//   store.set({"address/3", "10.0.0.7:4711"}, Deadline::in(10s));
//
// The launcher holds the listening socket, so it outlives the store process. If the store process
// ends, a call waits in the socket's queue, and the next store process answers it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/store/request_store.h"
#include "weft/store/status.h"

namespace weft::store {

// Name of the environment variable with the socket of the node's store process.
inline constexpr const char* kStoreVariable = "WEFT_STORE";

// A listening Unix socket and its name. The name begins with "@" (abstract: reachable within this
// host's network namespace, and leaves no file) and contains 128 random bits. Store processes
// accept connections of their own user only.
struct LocalListener {
  UniqueFd fd;
  std::string name;
};
// Throws Error(kUnavailable) if the system has no socket left.
LocalListener listen_locally();

// Each concurrent call has a connection of its own, which later calls reuse. After fork(), the
// child makes its own connections.
class Client : public internal::RequestStore {
 public:
  // `socket`: "@name" of LocalListener, or the path of a socket. Connects with the first call.
  explicit Client(std::string socket);
  ~Client() override;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Value of WEFT_STORE; none if it is not set or empty.
  static std::optional<std::string> environment();

  // What the store process of this node knows. Throws kUnavailable if the store is etcd.
  StoreStatus status(Deadline deadline);

  const std::string& socket() const { return socket_; }

 private:
  class Session;

  internal::Response call(internal::Request request, Deadline deadline) override;
  std::unique_ptr<Session> take_session();

  const std::string socket_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Session>> idle_;  // guarded by mutex_
};

}  // namespace weft::store
