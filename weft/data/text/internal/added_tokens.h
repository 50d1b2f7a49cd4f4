// AddedTokens: a trie that finds added tokens ("</s>") in a text before it is split into words. The
// first position with a match counts, and there the longest match.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/data/text/tokenizer.h"

namespace weft::data::text::internal {

class AddedTokens {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = 0;
  };

  // Adds a token with non-empty content. If the content exists already, it gets the new id.
  void add(std::string_view content, TokenId id, bool special);
  // Returns the first match at or after `from`. kAsText: special tokens are not found.
  std::optional<Match> next(std::string_view text, std::size_t from, Specials specials) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::vector<std::pair<char, std::int32_t>> after;
    TokenId id = -1;
    bool special = false;
  };
  std::int32_t child(std::int32_t node, char byte) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};
};

}  // namespace weft::data::text::internal
