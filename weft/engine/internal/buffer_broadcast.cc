#include "weft/engine/internal/buffer_broadcast.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace weft::parallel::internal {

BufferBroadcast::BufferBroadcast(std::vector<at::Tensor> buffers) {
  for (auto& buffer : buffers) {
    const auto same = [&](const Packed& packed) {
      return packed.buffers[0].scalar_type() == buffer.scalar_type() &&
             packed.buffers[0].device() == buffer.device();
    };
    auto found = std::find_if(packed_.begin(), packed_.end(), same);
    if (found == packed_.end()) found = packed_.insert(packed_.end(), Packed{});
    found->buffers.push_back(std::move(buffer));
  }
}

void BufferBroadcast::start(const Group& group) {
  const at::NoGradGuard guard;
  for (Packed& packed : packed_) {
    std::vector<at::Tensor> flat;
    for (const auto& buffer : packed.buffers) flat.push_back(buffer.reshape({-1}));
    packed.flat = at::cat(flat);
    packed.work = group.broadcast_async(packed.flat, 0);
  }
}

void BufferBroadcast::finish(const Group& group) {
  const at::NoGradGuard guard;
  for (Packed& packed : packed_) {
    packed.work->wait();
    if (group.rank() == 0) continue;
    std::int64_t first = 0;
    for (auto& buffer : packed.buffers) {
      buffer.copy_(packed.flat.narrow(0, first, buffer.numel()).view(buffer.sizes()));
      first += buffer.numel();
    }
  }
}

}  // namespace weft::parallel::internal
