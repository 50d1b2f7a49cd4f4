#include "weft/engine/internal/pass_order.h"

#include <ATen/ATen.h>

#include <string>

namespace weft::engine::internal {

void PassOrder::begin(bool backward) {
  ++passes_;
  last_ = -1;
  if (backward) {
    const int forwards = std::exchange(forwards_, 0);
    mine_in_order_ = std::exchange(ascending_, true) && forwards == 1;
  }
  // The number of the pass, its direction, and whether this rank ran its blocks in order.
  mine_ = at::tensor({passes_ * 4 + (backward ? 2 : 0) + (mine_in_order_ ? 1 : 0)}, at::kLong);
  all_ = at::empty({group_.size()}, at::kLong);
  work_ = group_.all_gather_async(all_, mine_);
}

void PassOrder::check_peers() {
  if (!work_) return;
  work_->wait();
  const auto* const numbers = all_.const_data_ptr<std::int64_t>();
  in_order_ = true;
  for (int peer = 0; peer < group_.size(); ++peer) {
    const auto name = [](std::int64_t number) {
      return std::to_string(number / 4) + (number % 4 >= 2 ? " (backward)" : " (forward)");
    };
    const std::int64_t mine = numbers[group_.rank()];
    in_order_ = in_order_ && numbers[peer] % 2 != 0;
    if (numbers[peer] / 2 == mine / 2) continue;
    throw Error(Errc::kInvalidArgument,
                "sharded: rank " + std::to_string(peer) + " is in pass " + name(numbers[peer]) +
                    ", this rank in pass " + name(mine) +
                    ": all ranks must make the same forward and backward passes; call skip_batch() "
                    "on a rank without a batch",
                {"sharded", group_.rank(), peer});
  }
  work_.reset();
  mine_.reset();
  all_.reset();
}

}  // namespace weft::engine::internal
