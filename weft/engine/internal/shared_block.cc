#include "weft/engine/internal/shared_block.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace weft::engine::internal {
namespace {

std::mutex blocks_lock;
// End of each block, by its begin. Guarded by blocks_lock.
std::multimap<const std::byte*, const std::byte*, std::less<>> blocks;

}  // namespace

SharedBlock::SharedBlock(Group group, const std::byte* begin, std::int64_t bytes)
    : group_(std::move(group)), begin_(begin), bytes_(bytes) {
  const std::lock_guard lock(blocks_lock);
  blocks.emplace(begin_, begin_ + bytes_);
}

SharedBlock::~SharedBlock() {
  const std::lock_guard lock(blocks_lock);
  blocks.erase(blocks.find(begin_));
}

bool SharedBlock::has(const void* pointer) {
  const auto* const at = static_cast<const std::byte*>(pointer);
  const std::lock_guard lock(blocks_lock);
  const auto after = blocks.upper_bound(at);
  return after != blocks.begin() && at < std::prev(after)->second;
}

void take_out_of_shared_block(at::Tensor& parameter) {
  if (!SharedBlock::has(parameter.data_ptr())) return;
  const at::NoGradGuard guard;
  parameter.set_data(parameter.detach().clone());
}

}  // namespace weft::engine::internal
