// The two transports of a group over several hosts: the shared memory of this host, and the
// messages to all ranks.
//
//   host: ranks numbered within this host ──┐
//                                           ├─ LinkedTransports
//   endpoint: ranks of the whole group ─────┘
//
// A failure of either transport ends the other one. All ranks of the group are told the first
// failure, in the group's own numbering. Later calls throw kAborted and cite it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "weft/comm/internal/host_map.h"
#include "weft/net/endpoint.h"
#include "weft/net/memory/host.h"

namespace weft::comm::internal {

class LinkedTransports {
 public:
  LinkedTransports(std::shared_ptr<net::Host> host, std::shared_ptr<net::Endpoint> endpoint,
                   HostMap map);
  ~LinkedTransports();
  LinkedTransports(const LinkedTransports&) = delete;
  LinkedTransports& operator=(const LinkedTransports&) = delete;

  net::Host& host() { return *host_; }
  const std::shared_ptr<net::Endpoint>& endpoint() { return endpoint_; }
  const HostMap& map() const { return map_; }

  // Runs `body`, which uses either transport. What it throws because a transport has failed leaves
  // as the group's first failure.
  template <class Body>
  void guard(const char* operation, Body&& body) {
    refuse(operation);
    try {
      body();
    } catch (const Error& error) {
      end(operation, error);
    }
  }
  // Ends both transports on this host, by the owner's wish; tells nobody else. `why` names ranks of
  // the group. The first failure wins.
  void fail(const Error& why) noexcept;
  // Ends this rank's part alone, where all ranks are known to find the same mistake.
  void conclude(const Error& why) noexcept;

 private:
  void refuse(const char* operation);
  [[noreturn]] void end(const char* operation, const Error& error);
  // Where a transport has failed and the other does not know: keeps the failure, ends the other
  // transport, and tells the other hosts.
  void settle();
  void watch();
  std::optional<Error> host_failure() const;
  void fail_host(const Error& why) noexcept;

  const std::shared_ptr<net::Host> host_;
  const std::shared_ptr<net::Endpoint> endpoint_;
  const HostMap map_;
  std::mutex mutex_;  // guards first_ and closing_
  std::optional<Error> first_;
  bool closing_ = false;
  std::condition_variable closing_changed_;
  // A call that waits in one transport ends within its period when the other fails.
  std::thread watcher_;
};

}  // namespace weft::comm::internal
