#include "weft/checkpoint/internal/staging.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/base/error.h"
#include "weft/kernels/reduce.h"

namespace weft::checkpoint::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kBlock = std::size_t{8} << 20;  // what a thread copies at once

// Each file begins at a multiple of a cache line.
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Run {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

void add_runs(std::vector<Run>& runs, std::byte* to, const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kBlock) {
    runs.push_back(
        {to + at, static_cast<const std::byte*>(from) + at, std::min(kBlock, bytes - at)});
  }
}

}  // namespace

std::int64_t staged_bytes(const SaveJob& job, std::int64_t most) {
  std::int64_t all = 0;
  for (const PlannedFile& file : job.files) {
    if (aligned(file.bytes) <= most - all) all += aligned(file.bytes);
  }
  return all;
}

Staging::~Staging() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void Staging::reserve(std::int64_t wanted) {
  const std::size_t bytes =
      (static_cast<std::size_t>(wanted) + kHugePage - 1) / kHugePage * kHugePage;
  if (bytes <= bytes_) return;
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(Errc::kUnavailable, "checkpoint: no memory for a copy of " +
                                        std::to_string(bytes >> 20) +
                                        " MiB of state; let the state be written without a copy "
                                        "(train.checkpoint_async = false)");
  }
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  ::madvise(data_, bytes_, MADV_HUGEPAGE);  // a hint
  for (std::size_t at = 0; at < bytes_; at += 4096) data_[at] = std::byte{0};
}

void Staging::copy(SaveJob& job, std::int64_t most) {
  reserve(staged_bytes(job, most));
  std::byte* next = data_;
  std::vector<Run> runs;
  for (PlannedFile& file : job.files) {
    if (aligned(file.bytes) > most - (next - data_)) continue;
    std::memcpy(next, file.header.data(), file.header.size());
    std::byte* to = next + file.header.size();
    for (const Slice& slice : file.slices) {
      const at::Tensor from = slice.tensor.detach();
      if (from.is_cpu() && from.is_contiguous()) {
        add_runs(runs, to, from.const_data_ptr(), from.nbytes());
      } else {
        at::from_blob(to, from.sizes(), from.options().device(at::kCPU)).copy_(from);
      }
      to += from.nbytes();
    }
    file.image = {next, static_cast<std::size_t>(file.bytes)};
    next += aligned(file.bytes);
  }
  at::parallel_for(0, static_cast<std::int64_t>(runs.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const Run& run = runs[static_cast<std::size_t>(i)];
                       kernels::stream_copy(run.to, run.from, static_cast<std::int64_t>(run.bytes));
                     }
                   });
}

}  // namespace weft::checkpoint::internal
