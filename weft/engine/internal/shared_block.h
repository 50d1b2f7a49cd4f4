// Memory of a group in which parameters lie once for each host. Several ranks write it, so a model
// of another group must not train parameters that still lie there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "weft/comm/group.h"

namespace weft::engine::internal {

class SharedBlock {
 public:
  // `begin`: memory that net::Host::share() returned. Keeps the group, and so the memory, alive.
  SharedBlock(Group group, const std::byte* begin, std::int64_t bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  // True if `pointer` lies in a block of this process. Any thread may call it.
  static bool has(const void* pointer);

 private:
  const Group group_;
  const std::byte* const begin_;
  const std::int64_t bytes_;
};

// Moves the parameter to memory of its own, with its value, if it lies in a block.
void take_out_of_shared_block(at::Tensor& parameter);

}  // namespace weft::engine::internal
