// Helpers of the operations of Direct: a rank's slot, its shard of an array, and pieces in staging
// memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "weft/kernels/reduce.h"
#include "weft/net/memory/direct.h"
#include "weft/net/memory/internal/staging.h"

namespace weft::net {
namespace internal {

// Begin of shard r of [0, count). Shards begin on cache lines, so that no two ranks write into one
// line.
inline std::int64_t shard_begin(std::int64_t count, int rank, int world, std::size_t element) {
  const auto line = static_cast<std::int64_t>(64 / element);
  const std::int64_t lines = (count + line - 1) / line;
  return std::min(count, lines * rank / world * line);
}

// Copies of at least this size bypass the caches.
constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;

inline void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to == from || bytes <= 0) return;
  if (bytes >= kStreamBytes) return kernels::stream_copy(to, from, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Gets a cache line for writing.
inline void prefetch_to_write(std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));  // __builtin_prefetch() gets it for reading only
#else
  __builtin_prefetch(line, 1);
#endif
}

// Copies to staging memory. Peers have read its cache lines, so each must first be taken from them.
// Lines are requested ahead: the stores alone would wait for one line after the other.
inline void copy_to_staging(std::byte* to, const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kAhead = 32 * kLine;
  for (std::int64_t at = 0; at < std::min(bytes, kAhead); at += kLine) prefetch_to_write(to + at);
  for (; bytes > kAhead; bytes -= kLine, to += kLine, from += kLine) {
    prefetch_to_write(to + kAhead);
    std::memcpy(to, from, kLine);
  }
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) std::memcpy(to, from, kLine);
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace internal

// A slot has one cache line of header, then kInline bytes of data. Each rank has two slots and uses
// them in turn. It overwrites a slot only after all ranks have reached the meeting in between, and
// so have read the slot.
struct alignas(64) Direct::Slot {
  std::atomic<std::uint32_t> sequence;
  Signature signature;
  Host::Token input, output;
  std::byte data[kInline];
};

template <class Use>
void Direct::touch_and_meet(Use use) {
  {
    const Host::Touch touch(host_, name_);
    use();
  }
  meet();
}

// Moves [0, length) elements through staging memory: stage(at, n, mine) fills this rank's piece,
// take(at, n, piece) reads all ranks' pieces.
template <class Stage, class Take>
void Direct::pieces(std::int64_t length, std::int64_t per_piece, Stage stage, Take take) {
  // The two pieces of a rank are used in turn. It fills a piece for step k + 2 after the barrier of
  // step k + 1. All ranks have arrived there, so all have read that piece in step k.
  internal::Staging& memory = staging();
  for (std::int64_t at = 0; at < length; at += per_piece) {
    const std::uint32_t piece = memory.take_piece();
    const std::int64_t n = std::min(per_piece, length - at);
    stage(at, n, memory.piece(host_.rank(), piece));
    meet();
    take(at, n, piece);
  }
}

// Before the first barrier of an operation: tells the peers where arrays of `bytes` are that they
// cannot read in place, so that the kernel can copy them.
inline void Direct::publish(const void* input, const void* output, std::int64_t bytes) {
  if (staging_) staging_->publish(sequence_ + 1, input, output, static_cast<std::size_t>(bytes));
}

// Moves published arrays through staging memory, or lets the kernel copy them: whichever way was
// faster so far. `bytes` is the same on all ranks. The kernel is never faster for few bytes.
template <class Staged, class Kernel>
void Direct::copy_either_way(schedule::Collective operation, std::int64_t bytes, Staged staged,
                             Kernel by_kernel) {
  constexpr std::int64_t kMinByKernel = 32 << 10;
  if (bytes < kMinByKernel || !staging().all_published(sequence_)) return staged();
  const internal::Route route = staging_->next_route(operation, static_cast<std::uint64_t>(bytes));
  const auto start = std::chrono::steady_clock::now();
  if (route == internal::Route::kSingleCopy) {
    by_kernel();
  } else {
    staged();
  }
  staging_->took(std::chrono::steady_clock::now() - start);
}

}  // namespace weft::net
