#include "weft/engine/internal/buffer_broadcast.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/checkpoint/slice.h"

namespace weft::engine::internal {
namespace {

// In types that can be concatenated. A program may give the buffer other memory at any time.
at::Tensor plain(const at::Tensor& buffer) { return checkpoint::plain_view("buffer", buffer); }

}  // namespace

BufferBroadcast::BufferBroadcast(std::vector<at::Tensor> buffers) {
  for (auto& buffer : buffers) {
    const auto same = [&](const Packed& packed) {
      return plain(packed.buffers[0]).scalar_type() == plain(buffer).scalar_type() &&
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
    for (const auto& buffer : packed.buffers) flat.push_back(plain(buffer).reshape({-1}));
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
    for (const auto& buffer : packed.buffers) {
      // Without a new version: autograd may have saved the buffer for a backward pass that is to
      // come. A batch norm in training mode does not read it there.
      at::Tensor mine = plain(buffer).variable_data();
      mine.copy_(packed.flat.narrow(0, first, mine.numel()).view(mine.sizes()));
      first += mine.numel();
    }
  }
}

}  // namespace weft::engine::internal
