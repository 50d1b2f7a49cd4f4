// The rows of a table: records of one size in chunks that never move, and a list of free ones.
//
//   record:  header (32 bytes) │ weights │ state arrays │ up to a multiple of 32 bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/ps/table/internal/budget.h"
#include "weft/ps/table/internal/mapped_memory.h"

namespace weft::ps::internal {

struct RowHeader {
  static constexpr std::uint32_t kLive = 0xfffffffe;

  std::uint64_t key;
  std::uint64_t touched;  // Clock of the last pull or push.
  std::uint32_t updates;  // Pushes so far.
  std::uint32_t epoch;    // Last snapshot that has the row, or that began before the row was made.
  std::uint32_t next;     // kLive, or the next free slot.
  std::uint32_t unused;

  float* values() { return reinterpret_cast<float*>(this + 1); }
};
static_assert(sizeof(RowHeader) == 32);

class RowStore {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff, kMaxSlots = 0xfffffffd;

  // Rows of `floats` values, weights and state together.
  RowStore(const std::string& folder, std::size_t floats, Budget& budget);

  RowHeader& at(std::uint32_t slot) const {
    return *reinterpret_cast<RowHeader*>(chunks_[slot >> shift_] +
                                         std::size_t{slot & mask_} * stride_);
  }
  [[gnu::always_inline]] void prefetch(std::uint32_t slot) const {
    const auto* const begin = reinterpret_cast<const std::byte*>(&at(slot));
    __builtin_prefetch(begin, 1);
    for (std::size_t byte = kLine; byte < fetched_; byte += kLine)
      __builtin_prefetch(begin + byte, 1);
  }
  // Slots that were ever used: all rows are below it.
  std::uint32_t high() const { return high_; }
  // A slot for a new row, marked as live. Throws Error(kUnavailable) if there is no memory.
  std::uint32_t take();
  void give_back(std::uint32_t slot) noexcept;

 private:
  // The processor itself fetches the lines that follow.
  static constexpr std::size_t kLine = 64, kMaxFetched = 16 * kLine;

  Budget& budget_;
  MappedMemory memory_;
  std::vector<std::byte*> chunks_;
  std::size_t stride_, fetched_;
  std::uint32_t shift_ = 0, mask_ = 0;
  std::uint32_t high_ = 0, free_ = kNone;
};

}  // namespace weft::ps::internal
