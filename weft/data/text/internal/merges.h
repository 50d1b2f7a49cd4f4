// The merges of byte-pair encoding (Sennrich, Haddow, Birch, "Neural machine translation of rare
// words with subword units", 2016). Of all adjacent pairs that have a merge, the pair that was
// learned first is merged, the leftmost if it occurs several times. This repeats until no pair is
// left. O(n log n) in the length.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/data/text/tokenizer.h"

namespace weft::data::text::internal {

struct Merge {
  std::int32_t rank = -1;  // Order of learning, from 0. -1: no merge.
  TokenId id = -1;         // Id of the merged token.
};

// A map from (left, right) to Merge. It uses open addressing in one array, whose size is a power of
// two and which is at most half full.
class MergeTable {
 public:
  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t merges);

  // Adds a merge. A pair that exists already gets the new merge. Call it at most as often as the
  // constructor was told.
  void add(TokenId left, TokenId right, Merge merge);
  // Returns the merge of the pair, or one of rank -1 if there is none.
  Merge find(TokenId left, TokenId right) const {
    for (std::size_t at = slot(key(left, right));; at = (at + 1) & mask_) {
      if (slots_[at].key == key(left, right)) return slots_[at].merge;
      if (slots_[at].key == kEmpty) return {};
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t key(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

// Applies a MergeTable. It keeps its memory between words. Not thread-safe.
class Merger {
 public:
  // Merges the ids from index `from` on, in place.
  void merge(const MergeTable& table, std::vector<TokenId>& ids, std::size_t from);

 private:
  struct Symbol {
    TokenId id;  // -1: merged into its left neighbor.
    std::int32_t before;
    std::int32_t after;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t at;
    TokenId id;
  };
  void consider(const MergeTable& table, std::int32_t at);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace weft::data::text::internal
