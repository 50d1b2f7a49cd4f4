// A Store whose methods are requests: base of all implementations.
#pragma once

#include "weft/store/request.h"

namespace weft::store::internal {

class RequestStore : public Store {
 public:
  std::optional<Value> get(const std::string& key, Deadline deadline) override;
  Revision set(const Write& write, Deadline deadline) override;
  Swap compare_and_set(const Write& write, Revision expected, Deadline deadline) override;
  std::int64_t add(const std::string& key, std::int64_t delta, Deadline deadline) override;
  Revision append(const std::string& key, const std::string& bytes, Deadline deadline) override;
  bool erase(const std::string& key, Deadline deadline) override;
  Listing list(const std::string& prefix, Deadline deadline) override;
  std::optional<Listing> wait(const std::string& prefix, Revision since,
                              Deadline deadline) override;
  LeaseId grant(std::chrono::milliseconds ttl, Deadline deadline) override;
  bool keep_alive(LeaseId lease, Deadline deadline) override;
  bool revoke(LeaseId lease, Deadline deadline) override;

 protected:
  // Returns the answer, of any status. Throws kTimeout and kUnavailable as store.h states.
  virtual Response call(Request request, Deadline deadline) = 0;

 private:
  Response ask(Request request, Deadline deadline);
};

}  // namespace weft::store::internal
