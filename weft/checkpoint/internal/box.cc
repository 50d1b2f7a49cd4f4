#include "weft/checkpoint/internal/box.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::checkpoint::internal {

std::int64_t volume(const Sizes& sizes) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) all *= size;
  return all;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.sizes[d] = std::min(a.offset[d] + a.sizes[d], b.offset[d] + b.sizes[d]) - both.offset[d];
    if (both.sizes[d] <= 0) return std::nullopt;
  }
  return both;
}

Box within(const Box& box, const Sizes& offset) {
  Box moved = box;
  for (std::size_t d = 0; d < offset.size(); ++d) moved.offset[d] -= offset[d];
  return moved;
}

at::Tensor view_of(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (std::size_t d = 0; d < box.offset.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.offset[d], box.sizes[d]);
  return part;
}

void each_run(const Sizes& shape, const Box& box, std::int64_t element_bytes,
              const std::function<void(std::int64_t, std::int64_t)>& visit) {
  // The dimensions from here on are read whole, so one run covers them.
  std::size_t whole = box.sizes.size();
  while (whole > 0 && box.sizes[whole - 1] == shape[whole - 1]) --whole;
  const std::size_t runs = whole == 0 ? 0 : whole - 1;
  Sizes index(runs, 0);
  std::int64_t run_bytes = element_bytes;
  for (std::size_t d = runs; d < box.sizes.size(); ++d) run_bytes *= box.sizes[d];
  if (run_bytes == 0) return;
  for (;;) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < box.offset.size(); ++d)
      at = at * shape[d] + box.offset[d] + (d < runs ? index[d] : 0);
    visit(at * element_bytes, run_bytes);
    std::size_t d = runs;
    while (d > 0 && ++index[d - 1] == box.sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace weft::checkpoint::internal
