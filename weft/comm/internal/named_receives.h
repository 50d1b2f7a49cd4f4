// Counts the pending receives from each peer, so that a receive from any peer leaves their messages
// alone. Receives run on different threads, and one may wait behind another of its peer and tag.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace weft::comm::internal {

class NamedReceives {
 public:
  // The receive counts until the result is released. This object must outlive it.
  std::shared_ptr<void> post(int tag, int peer) {
    const std::lock_guard lock(mutex_);
    ++pending_[{tag, peer}];
    return {this, [place = std::pair(tag, peer)](NamedReceives* all) { all->end(place); }};
  }
  bool has(int tag, int peer) const {
    const std::lock_guard lock(mutex_);
    return pending_.contains({tag, peer});
  }

 private:
  using Place = std::pair<int, int>;  // tag and peer

  void end(const Place& place) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(place);
    if (--found->second == 0) pending_.erase(found);
  }

  mutable std::mutex mutex_;
  std::map<Place, int> pending_;
};

}  // namespace weft::comm::internal
