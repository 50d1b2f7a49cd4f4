#include "weft/checkpoint/internal/image.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "weft/kernels/reduce.h"

namespace weft::checkpoint::internal {
namespace {

constexpr std::size_t kBlock = std::size_t{8} << 20;  // bytes that a thread copies at once

}  // namespace

void ImageWriter::add(std::byte* to, const std::string& header, const Slices& slices) {
  std::memcpy(to, header.data(), header.size());
  to += header.size();
  for (const Slice& slice : slices) {
    const at::Tensor from = slice.tensor.detach();
    const std::size_t bytes = from.nbytes();
    if (from.is_cpu() && from.is_contiguous() && !from.is_neg()) {
      const auto* const data = static_cast<const std::byte*>(from.const_data_ptr());
      for (std::size_t at = 0; at < bytes; at += kBlock)
        runs_.push_back({to + at, data + at, std::min(kBlock, bytes - at)});
    } else {
      at::from_blob(to, from.sizes(), from.options().device(at::kCPU)).copy_(from);
    }
    to += bytes;
  }
}

void ImageWriter::write() {
  at::parallel_for(0, static_cast<std::int64_t>(runs_.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const Run& run = runs_[static_cast<std::size_t>(i)];
                       kernels::stream_copy(run.to, run.from, static_cast<std::int64_t>(run.bytes));
                     }
                   });
  runs_.clear();
}

}  // namespace weft::checkpoint::internal
