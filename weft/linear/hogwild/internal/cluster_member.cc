#include "weft/linear/hogwild/internal/cluster_member.h"

#include <algorithm>
#include <atomic>

#include "weft/linear/hogwild/token_ring.h"

namespace weft::linear::internal {

void ClusterMember::poll(std::int64_t rows) {
  const auto turn = shared_.turn();
  const std::uint32_t number = turn.load(std::memory_order_acquire);
  const int holder = static_cast<int>(number);
  // A cluster may have passed the turn on between the first read and its end.
  if (!acts_for(holder) || turn.load(std::memory_order_acquire) != number) return;
  const int clusters = shared_.clusters(), next = (holder + 1) % clusters;
  if (left_ == 0) {
    exchange(shared_.weights(holder), shared_.snapshot(holder), shared_.weights(next),
             mixing(clusters));
    left_ = rows_;
  } else if ((left_ = std::max<std::int64_t>(0, left_ - rows)) == 0) {
    turn.store(static_cast<std::uint32_t>(next), std::memory_order_release);
  }
}

bool ClusterMember::acts_for(int holder) const {
  const int clusters = shared_.clusters();
  for (int at = holder; at != cluster_; at = (at + clusters - 1) % clusters) {
    if (shared_.ended(at).load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

}  // namespace weft::linear::internal
