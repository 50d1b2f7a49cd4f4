#include "weft/elastic/copying.h"

#include <ATen/ATen.h>

#include <chrono>

#include "weft/base/log.h"

namespace weft::elastic {

Copying::Copying(const Group& world, std::int64_t every)
    : world_(world), copies_(std::make_shared<StateCopies>(world)), interval_(every) {}

void Copying::add_step(double seconds) {
  seconds_ += seconds;
  ++steps_;
}

// The all-reduce also ends the call on all ranks before one of them begins the next.
int Copying::take(const checkpoint::Shards& shards, int wish) {
  const auto start = std::chrono::steady_clock::now();
  copies_->take(shards);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  at::Tensor times = at::tensor({took.count(), steps_ > 0 ? seconds_ / steps_ : 0.0,
                                 world_.rank() == 0 ? static_cast<double>(wish) : 0.0},
                                at::kDouble);
  world_.all_reduce(times, ReduceOp::kMax);
  const double copy_s = times[0].item<double>(), step_s = times[1].item<double>();
  // The first copy to each of the two slots allocates its memory, so its time is not typical.
  interval_.taken(shards.step, copy_s, taken_ < 2 ? 0 : step_s);
  log_debug("copied the state to memory",
            {{"step", shards.step}, {"copy_ms", 1e3 * copy_s}, {"step_ms", 1e3 * step_s}});
  ++taken_;
  seconds_ = 0;
  steps_ = 0;
  return static_cast<int>(times[2].item<double>());
}

}  // namespace weft::elastic
