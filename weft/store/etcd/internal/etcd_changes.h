// Changes of the store as transactions of etcd, each made once even if its request is sent again.
#pragma once

#include <mutex>

#include "weft/store/etcd/internal/etcd_api.h"
#include "weft/store/request.h"

namespace weft::store::internal {

struct EtcdPlace {
  std::string prefix;
  LeaseId session_lease;  // of the records of clients
};

// Changes a key, and writes the client's record (the request's number, and the answer) in the same
// transaction. If the record has this request already, gives its answer. Throws Error(kTimeout).
Response change_key(EtcdApi& api, const EtcdPlace& place, const Request& request,
                    Deadline deadline);

// kGrant, kKeepAlive and kRevoke. The lease's number comes from the request, so that a request that
// is sent again grants the same lease.
Response change_lease(EtcdApi& api, const Request& request, Deadline deadline);

// The lease of the records of clients: 10 minutes after the last use, they end.
class SessionLease {
 public:
  explicit SessionLease(const EtcdUrl& url) : api_(url) {}
  // Grants it, or keeps it alive once a minute.
  LeaseId lease(Deadline deadline);

 private:
  std::mutex mutex_;
  EtcdApi api_;                                                 // guarded by mutex_
  LeaseId lease_ = 0;                                           // guarded by mutex_
  Deadline renew_ = Deadline::in(std::chrono::nanoseconds(0));  // guarded by mutex_
};

}  // namespace weft::store::internal
