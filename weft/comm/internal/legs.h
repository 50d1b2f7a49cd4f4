// The two legs of a group over several hosts, the shared memory of this host and the messages to all ranks, and their one fate.
//
//   host: ranks numbered within this host ──┐            A failure of either leg ends the other. The first one is what all ranks of the
//                                           ├─ Legs      group are told, in the group's own numbering; calls that come later throw
//   endpoint: ranks of the whole group ─────┘            kAborted and cite it.
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

class Legs {
 public:
  Legs(std::shared_ptr<net::Host> host, std::shared_ptr<net::Endpoint> endpoint, HostMap map);
  ~Legs();
  Legs(const Legs&) = delete;
  Legs& operator=(const Legs&) = delete;

  net::Host& host() { return *host_; }
  const std::shared_ptr<net::Endpoint>& endpoint() { return endpoint_; }
  const HostMap& map() const { return map_; }

  // Runs `body`, which uses either leg. What it throws because a leg has failed leaves as the group's first failure.
  template <class Body>
  void guard(const char* operation, Body&& body) {
    refuse(operation);
    try {
      body();
    } catch (const Error& error) {
      end(operation, error);
    }
  }
  // Ends both legs on this host, by the owner's wish; tells nobody else. `why` names ranks of the group. The first failure wins.
  void fail(const Error& why) noexcept;
  // Ends this rank's part alone, where all ranks are known to find the same mistake.
  void conclude(const Error& why) noexcept;

 private:
  void refuse(const char* operation);
  [[noreturn]] void end(const char* operation, const Error& error);
  // Where a leg has failed and the other does not know: keeps the failure, ends the other leg, and tells the other hosts.
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
  std::thread watcher_;  // a call that waits in one leg ends within its period when the other fails
};

}  // namespace weft::comm::internal
