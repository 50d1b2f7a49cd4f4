#include "weft/engine/internal/change_marks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace weft::engine::internal {
namespace {

// A number that depends on each byte of a cache line and its place.
constexpr std::size_t kLineBytes = 64;
std::uint64_t sum_of_line(const std::byte* from, std::size_t bytes) {
  std::array<std::uint64_t, kLineBytes / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), from, bytes);
  std::uint64_t sum = 0, factor = 0x9e3779b97f4a7c15U;  // odd, as all multiples by odd numbers
  for (const std::uint64_t word : words) {
    sum += (word ^ (word >> 32)) * factor;
    factor *= 3;
  }
  return sum;
}

}  // namespace

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

LineSums sample_lines(const at::Tensor& tensor, std::uint64_t turn) {
  LineSums samples{};
  if (tensor.layout() != at::kStrided || !tensor.is_cpu() || tensor.numel() == 0 ||
      !tensor.is_non_overlapping_and_dense())
    return samples;
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::size_t bytes = tensor.nbytes(), lines = (bytes + kLineBytes - 1) / kLineBytes,
                    turns = (lines + samples.size() - 1) / samples.size();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::size_t at = (i * turns + turn % turns) * kLineBytes;
    if (at < bytes) samples[i] = sum_of_line(data + at, std::min(kLineBytes, bytes - at));
  }
  return samples;
}

bool is_zeros(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.count_nonzero().item<std::int64_t>() == 0;
}

}  // namespace weft::engine::internal
