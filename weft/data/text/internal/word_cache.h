// WordCache: a hash table of fixed size with the ids of words that were encoded before. A new word
// replaces the word in its slot. As text repeats its words, about nine of ten are found here. The
// table takes 4 MiB.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "weft/data/text/tokenizer.h"

namespace weft::data::text::internal {

class WordCache {
 public:
  // If the word is known, appends its ids and returns true.
  bool find(std::string_view word, std::vector<TokenId>& ids) const {
    if (word.size() > kMaxBytes || slots_.empty()) return false;
    const Slot& slot = slots_[place_of(word)];
    if (slot.bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return true;
  }
  // Stores the word, unless the word or its ids do not fit into a slot.
  void insert(std::string_view word, const TokenId* ids, std::size_t count) {
    if (word.empty() || word.size() > kMaxBytes || count > kMaxIds) return;
    if (slots_.empty()) slots_.resize(kSlots);
    Slot& slot = slots_[place_of(word)];
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(count);
    std::memcpy(slot.word, word.data(), word.size());
    std::copy(ids, ids + count, slot.ids);
  }

 private:
  static constexpr std::size_t kSlots = 1 << 16, kMaxBytes = 30, kMaxIds = 8;
  struct Slot {
    std::uint8_t bytes = 0;  // Length of the word. 0: the slot is empty.
    std::uint8_t count = 0;
    char word[kMaxBytes];
    TokenId ids[kMaxIds];
  };
  static_assert(sizeof(Slot) == 64);
  static std::size_t place_of(std::string_view word) {
    return std::hash<std::string_view>()(word) & (kSlots - 1);
  }

  std::vector<Slot> slots_;  // Empty before the first word.
};

}  // namespace weft::data::text::internal
