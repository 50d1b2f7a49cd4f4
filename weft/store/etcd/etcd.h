// Store of the job in etcd, through its HTTP interface (v3). The store process uses it, so that
// etcd's HTTP library is never in a process with libtorch.
//
//   Etcd store(parse_etcd_url("etcd://10.0.0.1:2379,10.0.0.2:2379/jobs/42"));
//
// Limits: no TLS and no password; etcd refuses values above its --max-request-bytes (1.5 MiB); a
// lease lasts whole seconds, rounded up. Nobody erases the keys under the prefix at the end of a
// job, so give each job its own prefix.
//
// In etcd, PREFIX/k/KEY holds a value, and PREFIX/c/CLIENT the last change of a client with its
// answer, so that a change that is sent again is not made again. The latter ends 10 minutes after
// the last store process.
#pragma once

#include <functional>
#include <memory>

#include "weft/store/etcd_url.h"
#include "weft/store/request_store.h"

namespace weft::store {

// Each concurrent call has its own connection. One thread in the background follows the changes.
class Etcd : public internal::RequestStore {
 public:
  explicit Etcd(const EtcdUrl& url);
  // Waits until the thread has ended, about a second at most.
  ~Etcd() override;
  Etcd(const Etcd&) = delete;
  Etcd& operator=(const Etcd&) = delete;

  // Executes a request of a client. `is_gone` is asked during a wait; true ends it.
  internal::Response execute(const internal::Request& request, Deadline deadline,
                             const std::function<bool()>& is_gone);

 private:
  class Impl;
  internal::Response call(internal::Request request, Deadline deadline) override;

  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::store
