// On nodes that meet, the store process of the launcher has no store: it only kills what a killed
// launcher leaves. So another one can take its place.
#include "weft/base/error.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {

StoreProcess::Options Supervisor::guarding() const {
  StoreProcess::Options options;
  if (!keep_folder_) options.folder = folder_;
  return options;
}

// It has ended.
void Supervisor::renew_guard() {
  const Time at = Deadline::Clock::now();
  if (at < renew_guard_at_) return;
  renew_guard_at_ = at + std::chrono::seconds(1);
  const auto ended = store_process_->poll();
  try {
    store_process_ = std::make_unique<StoreProcess>(guarding());
  } catch (const Error&) {  // no process now
    return;
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!situation_.ranks[i]) store_process_->guard(ranks_[i].process.pid());
  }
  for (const pid_t group : spares_.groups()) store_process_->guard(group);
  for (const pid_t group : servers_.groups()) store_process_->guard(group);
  note("the process that cleans up after a killed launcher has ended: " + ended->describe() +
       "; a new one takes its place");
}

}  // namespace weft::launch::internal
