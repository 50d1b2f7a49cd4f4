#include "weft/ps/table/internal/key_index.h"

#include <algorithm>
#include <cstring>

namespace weft::ps::internal {

KeyIndex::KeyIndex(const std::string& folder, Budget& budget)
    : budget_(budget), memory_(folder), scratch_(kLines) {
  segments_.push_back({new_lines(), 0, 0});
  lines_.push_back(segments_[0].lines);
  numbers_.push_back(0);
}

KeyIndex::Line* KeyIndex::new_lines() {
  budget_.take(kSegmentBytes);
  if (chunk_used_ + kSegmentBytes > MappedMemory::kChunk) {
    try {
      chunk_ = memory_.add();
    } catch (...) {
      budget_.give_back(kSegmentBytes);
      throw;
    }
    chunk_used_ = 0;
  }
  // The memory is zero: lines without keys.
  auto* const lines = reinterpret_cast<Line*>(chunk_ + chunk_used_);
  chunk_used_ += kSegmentBytes;
  return lines;
}

void KeyIndex::put(Line* lines, std::uint64_t hash, std::uint64_t key,
                   std::uint32_t slot) noexcept {
  std::size_t at = hash & kMask;
  for (; lines[at].used == kFull; at = (at + 1) & kMask) ++lines[at].passed;
  Line& line = lines[at];
  const int entry = __builtin_ctz(~static_cast<unsigned>(line.used));
  line.keys[entry] = key;
  line.slots[entry] = slot;
  line.used = static_cast<std::uint8_t>(line.used | (1 << entry));
}

void KeyIndex::insert(std::uint64_t hash, std::uint64_t key, std::uint32_t slot) {
  // Keys whose hashes share 20 bits fill a segment of the deepest level.
  while (segments_[numbers_[place(hash)]].keys >= kSplitAt) {
    if (segments_[numbers_[place(hash)]].depth == kDeepest) break;
    split(hash);
  }
  Segment& segment = segments_[numbers_[place(hash)]];
  if (segment.keys == kEntries * kLines)
    throw Error(Errc::kUnavailable, "the index of a table is full: too many keys hash alike");
  put(segment.lines, hash, key, slot);
  ++segment.keys;
  ++size_;
}

void KeyIndex::erase(std::uint64_t hash, std::uint64_t key) noexcept {
  Segment& segment = segments_[numbers_[place(hash)]];
  for (std::size_t at = hash & kMask;; at = (at + 1) & kMask) {
    Line& line = segment.lines[at];
    if (const int entry = entry_of(line, key); entry >= 0) {
      line.used = static_cast<std::uint8_t>(line.used & ~(1 << entry));
      break;
    }
    --line.passed;
  }
  --segment.keys;
  --size_;
}

// Splits the segment of this hash. What can fail comes first.
void KeyIndex::split(std::uint64_t hash) {
  const std::uint32_t number = numbers_[place(hash)];
  if (segments_[number].depth == depth_) double_directory();
  segments_.reserve(segments_.size() + 1);
  Line* const lines = new_lines();
  segments_.push_back({lines, 0, ++segments_[number].depth});
  divide(segments_[number], segments_.back());
  const int depth = segments_[number].depth;
  const std::size_t width = std::size_t{1} << (depth_ - depth);
  const std::size_t first = (place(hash) / (2 * width)) * 2 * width;
  const auto added = static_cast<std::uint32_t>(segments_.size() - 1);
  std::fill_n(lines_.begin() + static_cast<std::ptrdiff_t>(first + width), width, lines);
  std::fill_n(numbers_.begin() + static_cast<std::ptrdiff_t>(first + width), width, added);
}

void KeyIndex::double_directory() {
  std::vector<Line*> lines;
  std::vector<std::uint32_t> numbers;
  lines.reserve(2 * lines_.size());
  numbers.reserve(2 * lines_.size());
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    lines.insert(lines.end(), 2, lines_[i]);
    numbers.insert(numbers.end(), 2, numbers_[i]);
  }
  lines_.swap(lines);
  numbers_.swap(numbers);
  ++depth_;
}

// Moves the keys with a 1 in the last bit of the depth. Both segments have this depth already.
void KeyIndex::divide(Segment& from, Segment& to) noexcept {
  std::copy_n(from.lines, kLines, scratch_.begin());
  std::memset(static_cast<void*>(from.lines), 0, kSegmentBytes);
  const std::uint64_t bit = std::uint64_t{1} << (64 - from.depth);
  from.keys = 0;
  for (const Line& line : scratch_) {
    for (std::size_t j = 0; j < kEntries; ++j) {
      if ((line.used >> j & 1) == 0) continue;
      const std::uint64_t hash = hash_key(line.keys[j]);
      Segment& home = (hash & bit) != 0 ? to : from;
      put(home.lines, hash, line.keys[j], line.slots[j]);
      ++home.keys;
    }
  }
}

}  // namespace weft::ps::internal
