// Model: the contents of a tokenizer.json, checked and in tables for encoding and decoding.
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

// Hash of a map from text to id that can be searched by string_view.
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
  // Returns the text of the id, or nullopt if there is no such id.
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
  std::string old;   // Text that kReplace replaces.
  std::string text;  // Text that is prepended, or the replacement.
};
// nullopt if the text is longer than `most` bytes after a step. A file may have steps that double
// its length.
std::optional<std::string> normalized(const std::vector<Normalizer>& steps, std::string_view text,
                                      std::size_t most);

struct Decoding {
  bool byte_level = false;
  bool byte_fallback = false;  // The token <0x41> is the byte 0x41.
  std::string space;           // Text that becomes ' '. Empty: none.
  std::int64_t strip = 0;      // Number of spaces to remove from the beginning.
};

struct Model {
  std::string name;  // Name of the file in error messages.
  std::uint32_t fingerprint = 0;

  IdOfText vocab;  // Tokens of the vocabulary, as tokenizer.json writes them.
  IdOfText added;  // Added tokens.
  IdOfText whole;  // With ignore_merges, words that are a token, as bytes or characters.
  TextOfId texts;  // Text that decode() returns for an id.
  MergeTable merges;
  // Id of each byte: with byte_level its token, with byte_fallback <0x00> and so on. -1: none.
  std::array<TokenId, 256> bytes;
  TokenId unknown = -1;
  bool byte_level = false;
  bool byte_fallback = false;
  bool fuse_unknown = false;

  AddedTokens raw_tokens;         // Added tokens to find before normalization.
  AddedTokens normalized_tokens;  // Added tokens to find after normalization.
  std::vector<Normalizer> normalizers;
  std::vector<SplitStage> stages;
  Decoding decoding;
};

// Parses and checks a tokenizer.json. Throws as parse_tokenizer().
Model parse_model(std::string_view json, const std::string& name, const TokenizerLimits& limits);

}  // namespace weft::data::text::internal
