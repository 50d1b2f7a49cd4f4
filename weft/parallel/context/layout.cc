#include "weft/parallel/context/layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "weft/base/error.h"

namespace weft::parallel {

SequenceLayout::Chunk SequenceLayout::chunk(int index) const {
  const std::int64_t chunks = 2 * ranks, size = whole / chunks, longer = whole % chunks;
  return {index * size + std::min<std::int64_t>(index, longer), size + (index < longer ? 1 : 0)};
}

at::Tensor SequenceLayout::part(const at::Tensor& tensor, std::int64_t dim, int rank) const {
  WEFT_REQUIRE(tensor.size(dim) == whole,
               "context parallelism: a sequence of " + std::to_string(whole) + ", and dimension " +
                   std::to_string(dim) + " has " + std::to_string(tensor.size(dim)));
  if (ranks == 1) return tensor;
  const Chunk a = low(rank), b = high(rank);
  return at::cat({tensor.narrow(dim, a.begin, a.size), tensor.narrow(dim, b.begin, b.size)}, dim);
}

at::Tensor SequenceLayout::positions(int rank) const {
  return part(at::arange(whole, at::kLong), 0, rank);
}

}  // namespace weft::parallel
