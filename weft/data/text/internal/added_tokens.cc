#include "weft/data/text/internal/added_tokens.h"

namespace weft::data::text::internal {

std::int32_t AddedTokens::child(std::int32_t node, char byte) const {
  for (const auto& [label, to] : nodes_[static_cast<std::size_t>(node)].after) {
    if (label == byte) return to;
  }
  return -1;
}

void AddedTokens::add(std::string_view content, TokenId id, bool special) {
  std::int32_t node = 0;
  for (const char byte : content) {
    std::int32_t to = child(node, byte);
    if (to < 0) {
      to = static_cast<std::int32_t>(nodes_.size());
      nodes_[static_cast<std::size_t>(node)].after.emplace_back(byte, to);
      nodes_.emplace_back();
    }
    node = to;
  }
  nodes_[static_cast<std::size_t>(node)].id = id;
  nodes_[static_cast<std::size_t>(node)].special = special;
  starts_[static_cast<unsigned char>(content[0])] = true;
}

std::optional<AddedTokens::Match> AddedTokens::next(std::string_view text, std::size_t from,
                                                    Specials specials) const {
  if (empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    std::int32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      node = child(node, text[at]);
      if (node < 0) break;
      const Node& here = nodes_[static_cast<std::size_t>(node)];
      if (here.id >= 0 && !(here.special && specials == Specials::kAsText))
        longest = Match{begin, at + 1, here.id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace weft::data::text::internal
