#include "weft/checkpoint/internal/staging.h"

#include <sys/mman.h>

#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/image.h"

namespace weft::checkpoint::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Each file begins at a multiple of a cache line.
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

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
  ImageWriter writer;
  for (PlannedFile& file : job.files) {
    if (aligned(file.bytes) > most - (next - data_)) continue;
    writer.add(next, file.header, file.slices);
    file.image = {next, static_cast<std::size_t>(file.bytes)};
    next += aligned(file.bytes);
  }
  writer.write();
}

}  // namespace weft::checkpoint::internal
