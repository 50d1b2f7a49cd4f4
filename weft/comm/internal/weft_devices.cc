// WeftBackend beside the backend of its devices.
#include <unistd.h>

#include "weft/base/log.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm::internal {

void WeftBackend::setTimeout(std::chrono::milliseconds timeout) {
  std::atomic_ref(options_->timeout).store(timeout, std::memory_order_relaxed);
  if (devices_) devices_->setTimeout(timeout);
}

Traffic WeftBackend::traffic() const {
  Traffic moved = member_ ? member_->traffic() : engine_->traffic();
  moved.is_complete = moved.is_complete && !devices_;
  return moved;
}

void WeftBackend::abort_with(const Error& why) noexcept {
  if (getpid() != process_) return;  // the group is that of the parent
  engine_->fail(why);
  abort_devices();
  // The caller may free what peers read and write.
  if (net::Host* const shared = host()) shared->await_untouched();
}

void WeftBackend::stop() noexcept {
  if (getpid() != process_) return;
  engine_->stop(Error(Errc::kAborted, "rank " + std::to_string(rank_) + " has left the group"));
  abort_devices();
}

void WeftBackend::abort_devices() noexcept {
  if (!devices_) return;
  try {
    devices_->abort();
  } catch (const std::exception& error) {
    log_debug("the device's backend cannot be aborted", {{"why", error.what()}});
  }
}

}  // namespace weft::comm::internal
