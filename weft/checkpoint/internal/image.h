// Images: the bytes of safetensors files in memory, copied from tensors by libtorch's threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "weft/checkpoint/slice.h"

namespace weft::checkpoint::internal {

class ImageWriter {
 public:
  // Plans an image at `to`: the header, then the slices' values in their order. The memory and the
  // slices must stay until write() has returned. Values that are not contiguous, or not on the CPU,
  // are copied at once.
  void add(std::byte* to, const std::string& header, const Slices& slices);
  // Copies all planned values. They bypass the caches, since nobody reads them soon.
  void write();

 private:
  struct Run {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  std::vector<Run> runs_;
};

}  // namespace weft::checkpoint::internal
