// From keys to slots of rows: an extendible hash table (Fagin, Nievergelt, Pippenger, Strong,
// "Extendible hashing", ACM TODS 1979) whose segments are open-addressed.
//
//   directory: top bits of the hash        segment: 4,096 lines of 64 bytes
//   ┌───┬───┬───┬───┐                      ┌─────────────────────────────────┐
//   │ 0 │ 0 │ 1 │ 2 │ ───────────────────► │ 5 keys, 5 slots, used, passed   │ low bits of the hash
//   └───┴───┴───┴───┘                      └─────────────────────────────────┘
//
// A lookup reads one cache line in most cases: a full line passes keys on to the next line, and
// counts them, so that a lookup ends at a line that passed none. Erasing counts down; there are no
// tombstones. A segment that is 70 % full splits in two, which costs about 0.3 ms; nothing else
// moves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/ps/table/internal/budget.h"
#include "weft/ps/table/internal/mapped_memory.h"

namespace weft::ps::internal {

// A bijection of 64 bits that mixes them well: the finalizer of SplitMix64 (Steele, Lea, Flood,
// OOPSLA 2014).
inline std::uint64_t hash_key(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

class KeyIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  KeyIndex(const std::string& folder, Budget& budget);

  std::uint64_t size() const { return size_; }

  // `hash` is hash_key(key) in all calls.
  // Inlined, because GCC takes a function that only prefetches for one without effect.
  [[gnu::always_inline]] void prefetch(std::uint64_t hash) const {
    __builtin_prefetch(lines_[place(hash)] + (hash & kMask));
  }
  // The key's slot, or kNone.
  std::uint32_t find(std::uint64_t hash, std::uint64_t key) const {
    const Line* const lines = lines_[place(hash)];
    std::size_t at = hash & kMask;
    for (std::size_t looked = 0; looked < kLines; ++looked, at = (at + 1) & kMask) {
      if (const int entry = entry_of(lines[at], key); entry >= 0) return lines[at].slots[entry];
      if (lines[at].passed == 0) return kNone;
    }
    return kNone;
  }
  // Calls use(slot) for each key whose hash is from `first` to `last`. `use` must not change the
  // index. Reads whole segments: their keys share the top bits of the hash.
  template <class Use>
  void each(std::uint64_t first, std::uint64_t last, const Use& use) const {
    for (std::size_t at = place(first); at <= place(last); ++at) {
      const Line* const lines = lines_[at];
      if (at > place(first) && lines == lines_[at - 1]) continue;  // several places, one segment
      for (std::size_t i = 0; i < kLines; ++i) {
        for (unsigned left = lines[i].used; left != 0; left &= left - 1) {
          const int entry = __builtin_ctz(left);
          const std::uint64_t hash = hash_key(lines[i].keys[static_cast<std::size_t>(entry)]);
          if (hash >= first && hash <= last) use(lines[i].slots[static_cast<std::size_t>(entry)]);
        }
      }
    }
  }
  // Adds a key that is not there. Throws Error(kUnavailable) if there is no memory; nothing changes
  // then.
  void insert(std::uint64_t hash, std::uint64_t key, std::uint32_t slot);
  // Removes a key that is there.
  void erase(std::uint64_t hash, std::uint64_t key) noexcept;

 private:
  static constexpr std::size_t kEntries = 5, kLines = 4096, kMask = kLines - 1;
  static constexpr std::uint8_t kFull = (1 << kEntries) - 1;
  static constexpr std::uint32_t kSplitAt = kEntries * kLines * 7 / 10;
  static constexpr int kDeepest = 20;  // 2^20 segments: 10^10 keys

  struct alignas(64) Line {
    std::array<std::uint64_t, kEntries> keys;
    std::array<std::uint32_t, kEntries> slots;
    std::uint8_t used;     // Bit of each entry that has a key.
    std::uint16_t passed;  // Keys that this line passed on to later ones.
  };
  static_assert(sizeof(Line) == 64);
  static constexpr std::size_t kSegmentBytes = kLines * sizeof(Line);

  struct Segment {
    Line* lines = nullptr;
    std::uint32_t keys = 0;
    int depth = 0;  // Top bits of the hash that its keys share.
  };

  // Index in the directory. Two shifts, because one by 64 is not defined.
  std::size_t place(std::uint64_t hash) const { return (hash >> 1) >> (63 - depth_); }
  static int entry_of(const Line& line, std::uint64_t key) {
    unsigned found = 0;
    for (std::size_t j = 0; j < kEntries; ++j)
      found |= static_cast<unsigned>(line.keys[j] == key) << j;
    found &= line.used;
    return found != 0 ? __builtin_ctz(found) : -1;
  }
  static void put(Line* lines, std::uint64_t hash, std::uint64_t key, std::uint32_t slot) noexcept;

  Line* new_lines();
  void split(std::uint64_t hash);
  void double_directory();
  void divide(Segment& from, Segment& to) noexcept;

  Budget& budget_;
  MappedMemory memory_;
  std::byte* chunk_ = nullptr;  // The last one.
  std::size_t chunk_used_ = MappedMemory::kChunk;
  std::vector<Segment> segments_;
  // The directory: lines and number of each place's segment.
  std::vector<Line*> lines_;
  std::vector<std::uint32_t> numbers_;
  int depth_ = 0;
  std::uint64_t size_ = 0;
  std::vector<Line> scratch_;  // Of divide().
};

}  // namespace weft::ps::internal
