#include "weft/ps/table/internal/row_store.h"

#include <algorithm>

namespace weft::ps::internal {

RowStore::RowStore(const std::string& folder, std::size_t floats, Budget& budget)
    : budget_(budget), memory_(folder) {
  constexpr std::size_t kUnit = 32;
  stride_ = (sizeof(RowHeader) + floats * sizeof(float) + kUnit - 1) / kUnit * kUnit;
  fetched_ = std::min(stride_, kMaxFetched);
  WEFT_CHECK(stride_ <= MappedMemory::kChunk, "a row fits in a chunk");
  while ((stride_ << (shift_ + 1)) <= MappedMemory::kChunk) ++shift_;
  mask_ = (std::uint32_t{1} << shift_) - 1;
}

std::uint32_t RowStore::take() {
  std::uint32_t slot = free_;
  if (slot != kNone) {
    free_ = at(slot).next;
  } else {
    if (high_ == kMaxSlots)
      throw Error(Errc::kUnavailable, "a table can hold at most 2^32 - 3 rows; use more servers");
    budget_.take(stride_);
    try {
      if (high_ >> shift_ == chunks_.size()) {
        chunks_.reserve(chunks_.size() + 1);
        chunks_.push_back(memory_.add());
      }
    } catch (...) {
      budget_.give_back(stride_);
      throw;
    }
    slot = high_++;
  }
  at(slot).next = RowHeader::kLive;
  return slot;
}

void RowStore::give_back(std::uint32_t slot) noexcept {
  at(slot).next = free_;
  free_ = slot;
}

}  // namespace weft::ps::internal
