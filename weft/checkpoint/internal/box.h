// Rectangles of tensors, and the bytes that they cover.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace weft::checkpoint::internal {

using Sizes = std::vector<std::int64_t>;

// [offset, offset + sizes) along each dimension.
struct Box {
  Sizes offset, sizes;
};

std::int64_t volume(const Sizes& sizes);
// nullopt if they share no entry.
std::optional<Box> intersection(const Box& a, const Box& b);
// The box, relative to the offset of another one.
Box within(const Box& box, const Sizes& offset);
at::Tensor view_of(const at::Tensor& tensor, const Box& box);

// Calls `visit` with the first byte and the number of bytes of each contiguous run of `box` in a
// row-major tensor of this shape, in their order.
void each_run(const Sizes& shape, const Box& box, std::int64_t element_bytes,
              const std::function<void(std::int64_t begin, std::int64_t bytes)>& visit);

}  // namespace weft::checkpoint::internal
