// Follows all changes under a prefix of etcd in a background thread, for those who wait for one.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "weft/store/etcd/internal/etcd_api.h"
#include "weft/store/internal/changes.h"

namespace weft::store::internal {

// The last key of all that begin with `prefix`, as etcd takes it: the first key after them.
std::string range_end(std::string prefix);

class ChangeFeed {
 public:
  // `prefix`: of the keys in etcd; the rest of a key is its name here.
  ChangeFeed(const EtcdUrl& url, std::string prefix);
  // Waits for the thread, a second at most.
  ~ChangeFeed() = default;

  // Waits until a key whose name begins with `prefix` has changed after `since`, or until the
  // deadline; asks `is_gone` twice a second and ends when it is true. Returns whether there is such
  // a change.
  bool wait(const std::string& prefix, Revision since, Deadline deadline,
            const std::function<bool()>& is_gone);

 private:
  void follow(const std::stop_token& stop);
  bool take(const nlohmann::json& message);

  const std::string prefix_;
  EtcdApi api_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable_any pause_;  // of the thread; ends early when it must stop
  Changes changes_;                    // guarded by mutex_
  Revision last_ = 0;    // guarded by mutex_: last change that was seen; 0: none, also before
  std::jthread thread_;  // last, so that it ends first
};

}  // namespace weft::store::internal
