// The monitored barrier of WeftBackend.
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/deadline.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm::internal {
namespace {

constexpr std::chrono::milliseconds kLookForLoss{20};

}  // namespace

void WeftBackend::throw_loss() {
  constexpr const char* kName = "monitored_barrier";
  const auto loss = loss_in(*engine_);
  if (!loss) return;
  const Error error(loss->code(), loss->message(), {kName, rank_, loss->context().peer});
  std::rethrow_exception(caused_by(std::make_exception_ptr(error), kName));
}

void WeftBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  WEFT_REQUIRE(origin_.store, "monitored_barrier: this group was made without a store");
  ++others_;
  const auto timeout =
      options.timeout == c10d::kUnsetTimeout ? this->timeout() : bounded(options.timeout);
  const std::string took = " in " + std::to_string(timeout.count()) + " ms";
  if (timeout.count() <= 0)
    throw Error(Errc::kTimeout,
                "Rank " + std::to_string(rank_) + " timed out in monitoredBarrier" + took);
  const auto prefix = [](std::uint64_t barrier) {
    return "weft/monitored/" + std::to_string(barrier) + "/";
  };
  const std::uint64_t barrier = monitored_++;
  const std::string result = prefix(barrier) + "result";
  const auto deadline = Deadline::in(timeout);
  // The barrier may be called to find out why a group has ended. But nobody waits for a rank that
  // is lost, or for ranks that somebody tells to stop meanwhile.
  const auto before = loss_in(*engine_);
  const bool had_ended = before && before->code() == Errc::kAborted;
  auto look = Deadline::in(std::chrono::seconds(0));
  const auto comes = [&](const std::string& key) {
    while (!origin_.store->check({key})) {
      if (deadline.passed()) return false;
      if (!had_ended && look.passed()) {
        throw_loss();
        look = Deadline::in(kLookForLoss);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  };
  if (rank_ != 0) {
    origin_.store->set(prefix(barrier) + std::to_string(rank_), std::vector<std::uint8_t>{1});
    if (comes(result) && origin_.store->get(result) == std::vector<std::uint8_t>{1}) return;
    throw Error(Errc::kTimeout, "Rank " + std::to_string(rank_) +
                                    " successfully reached monitoredBarrier, but received errors "
                                    "while waiting for send/recv from rank 0. "
                                    "Please check rank 0 logs for faulty rank.");
  }
  std::string missing;
  int count = 0;
  for (int peer = 1; peer < size_ && (wait_all_ranks || count == 0); ++peer) {
    if (comes(prefix(barrier) + std::to_string(peer))) continue;
    missing += (count++ > 0 ? ", " : "") + std::to_string(peer);
  }
  origin_.store->set(result, std::vector<std::uint8_t>{static_cast<std::uint8_t>(count == 0)});
  if (count > 0)
    throw Error(Errc::kTimeout, std::string(wait_all_ranks && count > 1 ? "Ranks " : "Rank ") +
                                    missing + " failed to pass monitoredBarrier" + took);
  if (barrier == 0) return;
  // All ranks that reached this point have read the result of the previous barrier.
  for (int peer = 1; peer < size_; ++peer)
    origin_.store->deleteKey(prefix(barrier - 1) + std::to_string(peer));
  origin_.store->deleteKey(prefix(barrier - 1) + "result");
}

}  // namespace weft::comm::internal
