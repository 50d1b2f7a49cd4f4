// All that a tokenizer.json says, checked and laid out for use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/data/text/internal/added_tokens.h"
#include "weft/data/text/internal/merges.h"
#include "weft/data/text/internal/splitter.h"
#include "weft/data/text/tokenizer.h"

namespace weft::data::text::internal {

// Text to id, with string_view look-ups.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using IdOfText = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

// The text of each id, in one string.
class TextOfId {
 public:
  void set(TokenId id, std::string_view text);
  // nullopt: there is no such id.
  std::optional<std::string_view> find(TokenId id) const;
  std::int64_t size() const { return static_cast<std::int64_t>(spans_.size()); }

 private:
  struct Span {
    std::uint32_t begin = 0;
    std::uint32_t length = ~std::uint32_t{0};
  };
  std::string all_;
  std::vector<Span> spans_;
};

struct Normalizer {
  enum class Kind { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string old;   // of kReplace
  std::string text;  // what is prepended, or comes instead
};
std::string normalized(const std::vector<Normalizer>& steps, std::string_view text);

struct Decoding {
  bool byte_level = false;
  bool byte_fallback = false;  // <0x41> is the byte 0x41
  std::string space;           // becomes ' '; empty: nothing does
  std::int64_t strip = 0;      // spaces to take from the beginning
};

struct Model {
  std::string name;  // for messages
  std::uint32_t fingerprint = 0;

  IdOfText vocab;  // as tokenizer.json writes them
  IdOfText added;  // added tokens
  IdOfText whole;  // ignore_merges: words that are a token, in their bytes or characters
  TextOfId texts;  // what decode() puts for an id
  MergeTable merges;
  // byte_level: of each byte; byte_fallback: of <0x00> and on; -1: none.
  std::array<TokenId, 256> bytes;
  TokenId unknown = -1;
  bool byte_level = false;
  bool byte_fallback = false;
  bool fuse_unknown = false;

  AddedTokens raw_tokens;         // found before the text is normalized
  AddedTokens normalized_tokens;  // found after
  std::vector<Normalizer> normalizers;
  std::vector<SplitStage> stages;
  Decoding decoding;
};

// As parse_tokenizer() promises.
Model parse_model(std::string_view json, const std::string& name, const TokenizerLimits& limits);

}  // namespace weft::data::text::internal
