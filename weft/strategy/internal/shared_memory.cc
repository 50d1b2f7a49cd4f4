#include "weft/strategy/internal/shared_memory.h"

#include <ATen/ATen.h>

#include <utility>

#include "weft/base/error.h"
#include "weft/net/memory/host.h"

namespace weft::strategy::internal {

SharedMemory::SharedMemory(Group workers, std::size_t bytes) : workers_(std::move(workers)) {
  if (workers_.size() == 1) {
    alone_ = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
    data_ = static_cast<std::byte*>(alone_.mutable_data_ptr());
    return;
  }
  net::Host* const host = workers_.host();
  if (host == nullptr) {
    throw Error(Errc::kBadConfig,
                "this strategy keeps its state in the memory of a host, and the workers are not on "
                "one host, or cannot share memory; use easgd, local_sgd, diloco or gossip");
  }
  data_ = host->share(bytes, workers_.timeout());
}

void SharedMemory::notify() const {
  if (workers_.size() > 1) workers_.host()->notify();
}

void SharedMemory::wait(const std::function<bool()>& ready, const std::function<int()>& suspect,
                        const char* operation) const {
  if (ready()) return;
  WEFT_CHECK(workers_.size() > 1, "a worker that is alone waits for another one");
  workers_.host()->wait(ready, suspect, operation, workers_.timeout());
}

void SharedMemory::count_moved(std::size_t bytes) const {
  if (workers_.size() > 1) workers_.host()->count_moved(bytes);
}

SharedMemory::Hold::Hold(const SharedMemory& memory, Lock& lock) : lock_(lock) {
  const std::int32_t mine = memory.workers().rank() + 1;
  const auto taken = [&] {
    std::int32_t free = 0;
    return lock.holder.compare_exchange_strong(free, mine, std::memory_order_acquire);
  };
  if (taken()) return;
  const auto holder = [&] { return lock.holder.load(std::memory_order_relaxed) - 1; };
  memory.wait(taken, holder, "exchange with other workers");
}

}  // namespace weft::strategy::internal
