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

  // Runs `body`, which uses either transport. If it throws because a transport has failed, the
  // group's first failure is thrown instead.
  template <class Body>
  void guard(const char* operation, Body&& body) {
    refuse(operation);
    try {
      body();
    } catch (const Error& error) {
      end(operation, error);
    }
  }
  // Aborts both transports at the owner's request. `why` names ranks of the group. All ranks are
  // told. The first failure wins.
  void fail(const Error& why) noexcept;
  // The same on this host, without telling other hosts.
  void stop(const Error& why) noexcept;
  // Throws the group's first failure, if any, also one that no call has noticed yet.
  void check(const char* operation) {
    settle();
    refuse(operation);
  }
  // After an error within a call: returns when no rank of this host uses memory of its peers.
  void leave();
  // Fails this rank only. For errors that all ranks are known to find themselves.
  void conclude(const Error& why) noexcept;

 private:
  void refuse(const char* operation);
  [[noreturn]] void end(const char* operation, const Error& error);
  // If one transport has failed: stores the failure, aborts the other transport, and tells the
  // other hosts.
  void settle();
  void watch();
  std::optional<Error> host_failure() const;
  bool found_by_host() const;
  void fail_host(const Error& why) noexcept;

  const std::shared_ptr<net::Host> host_;
  const std::shared_ptr<net::Endpoint> endpoint_;
  const HostMap map_;
  std::mutex mutex_;  // guards first_ and closing_
  std::optional<Error> first_;
  bool closing_ = false;
  std::condition_variable closing_changed_;
  // Aborts a call that waits in one transport within one period after the other has failed.
  std::thread watcher_;
};

}  // namespace weft::comm::internal
