// Sends rank 0's buffers (running statistics) to all ranks by messages: one asynchronous broadcast
// per element type.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/comm/group.h"

namespace weft::engine::internal {

class BufferBroadcast {
 public:
  explicit BufferBroadcast(std::vector<at::Tensor> buffers);
  void broadcast(const Group& group) {
    start(group);
    finish(group);
  }
  void start(const Group& group);
  // Waits until the buffers equal those of rank 0. Their versions stay, also within a backward pass
  // of the program.
  void finish(const Group& group);

 private:
  struct Packed {
    at::Tensor flat;
    std::vector<at::Tensor> buffers;
    Group::Work work;
  };
  std::vector<Packed> packed_;
};

}  // namespace weft::engine::internal
