#include "weft/comm/internal/monitored_barrier.h"

#include <string>
#include <thread>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::comm::internal {
namespace {

constexpr std::chrono::milliseconds kLookForLoss{20};

}  // namespace

void MonitoredBarrier::run(c10d::Store& store, std::chrono::milliseconds timeout, bool names_all,
                           const std::function<void()>& look) {
  const std::string took = " in " + std::to_string(timeout.count()) + " ms";
  if (timeout.count() <= 0)
    throw Error(Errc::kTimeout,
                "Rank " + std::to_string(rank_) + " timed out in monitoredBarrier" + took);
  const auto prefix = [](std::uint64_t barrier) {
    return "weft/monitored/" + std::to_string(barrier) + "/";
  };
  const std::uint64_t barrier = number_++;
  const std::string result = prefix(barrier) + "result";
  const auto deadline = Deadline::in(timeout);
  auto next_look = Deadline::in(std::chrono::seconds(0));
  const auto comes = [&](const std::string& key) {
    while (!store.check({key})) {
      if (deadline.passed()) return false;
      if (next_look.passed()) {
        look();
        next_look = Deadline::in(kLookForLoss);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  };
  if (rank_ != 0) {
    store.set(prefix(barrier) + std::to_string(rank_), std::vector<std::uint8_t>{1});
    if (comes(result) && store.get(result) == std::vector<std::uint8_t>{1}) return;
    throw Error(Errc::kTimeout, "Rank " + std::to_string(rank_) +
                                    " successfully reached monitoredBarrier, but received errors "
                                    "while waiting for send/recv from rank 0. "
                                    "Please check rank 0 logs for faulty rank.");
  }
  std::string missing;
  int count = 0;
  for (int peer = 1; peer < size_ && (names_all || count == 0); ++peer) {
    if (comes(prefix(barrier) + std::to_string(peer))) continue;
    missing += (count++ > 0 ? ", " : "") + std::to_string(peer);
  }
  store.set(result, std::vector<std::uint8_t>{static_cast<std::uint8_t>(count == 0)});
  if (count > 0)
    throw Error(Errc::kTimeout, std::string(names_all && count > 1 ? "Ranks " : "Rank ") + missing +
                                    " failed to pass monitoredBarrier" + took);
  if (barrier == 0) return;
  // All ranks that reached this point have read the result of the previous barrier.
  for (int peer = 1; peer < size_; ++peer)
    store.deleteKey(prefix(barrier - 1) + std::to_string(peer));
  store.deleteKey(prefix(barrier - 1) + "result");
}

}  // namespace weft::comm::internal
