// Marks of a tensor by which a change of its values is noticed without reading all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace weft::engine::internal {

// Autograd's count of changes in place. Writing through data() leaves it as it is.
std::int64_t version_of(const at::Tensor& tensor);

// Checksums of 16 cache lines that are spread over a tensor in host memory. Successive turns look
// at all lines.
using LineSums = std::array<std::uint64_t, 16>;
LineSums sample_lines(const at::Tensor& tensor, std::uint64_t turn);

// zero_grad() may have filled the gradient. Reads it.
bool is_zeros(const at::Tensor& gradient);

}  // namespace weft::engine::internal
