#include "weft/data/text/internal/bpe_tokenizer.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"
#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {
namespace {

constexpr std::size_t kMostBytes = std::numeric_limits<std::int32_t>::max() - 1;

std::string hex_of(std::string_view bytes) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += std::string(out.empty() ? "" : " ") + "0x" + kHex[byte >> 4] + kHex[byte & 15];
  }
  return out;
}

// Appends the id of each added token to `ids` and calls between(text, at_start) for the text
// between them.
template <typename Between>
void cut(const AddedTokens& tokens, std::string_view text, std::vector<TokenId>& ids,
         Specials specials, const Between& between) {
  std::size_t done = 0;
  while (const auto match = tokens.next(text, done, specials)) {
    if (match->begin > done) between(text.substr(done, match->begin - done), done == 0);
    ids.push_back(match->id);
    done = match->end;
  }
  if (done < text.size()) between(text.substr(done), done == 0);
}

}  // namespace

BpeTokenizer::BpeTokenizer(std::shared_ptr<const Model> model)
    : model_(std::move(model)), splitter_(model_->stages) {}

void BpeTokenizer::encode(std::string_view text, std::vector<TokenId>& ids, Specials specials) {
  WEFT_REQUIRE(text.size() <= kMostBytes,
               "encode: the text has 2 GiB or more; split it into documents");
  cut(model_->raw_tokens, text, ids, specials,
      [&](std::string_view part, bool at_start) { encode_raw(part, at_start, ids, specials); });
}

void BpeTokenizer::encode_raw(std::string_view text, bool at_start, std::vector<TokenId>& ids,
                              Specials specials) {
  if (model_->normalizers.empty()) {
    encode_words(text, at_start, ids);
    return;
  }
  const auto clean = normalized(model_->normalizers, text, kMostBytes);
  WEFT_REQUIRE(clean.has_value(), "encode: the normalizer of " + model_->name +
                                      " makes the text 2 GiB or more; split it into documents");
  cut(model_->normalized_tokens, *clean, ids, specials,
      [&](std::string_view part, bool first) { encode_words(part, at_start && first, ids); });
}

void BpeTokenizer::encode_words(std::string_view text, bool at_start, std::vector<TokenId>& ids) {
  splitter_.split(text, at_start, [&](std::string_view word) { encode_word(word, ids); });
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) {
  if (cache_.find(word, ids)) return;
  const std::size_t from = ids.size();
  const auto whole = model_->whole.find(word);
  if (whole != model_->whole.end()) {
    ids.push_back(whole->second);
  } else {
    model_->byte_level ? put_bytes(word, ids) : put_characters(word, ids);
    merger_.merge(model_->merges, ids, from);
  }
  cache_.insert(word, ids.data() + from, ids.size() - from);
}

void BpeTokenizer::put_bytes(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  for (const char& c : word) {
    const TokenId id = model_->bytes[static_cast<unsigned char>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (!after_unknown || !model_->fuse_unknown) {
      put_unknown({&c, 1}, ids);
    }
    after_unknown = id < 0;
  }
}

void BpeTokenizer::put_characters(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const Character character = character_at(word, at);
    const std::string_view bytes = word.substr(at, character.length);
    const auto found = character.valid ? model_->vocab.find(bytes) : model_->vocab.end();
    const auto has_byte = [&](char c) { return model_->bytes[static_cast<unsigned char>(c)] >= 0; };
    at += character.length;
    const bool known = found != model_->vocab.end();
    const bool in_bytes = !known && std::all_of(bytes.begin(), bytes.end(), has_byte);
    if (known) {
      ids.push_back(found->second);
    } else if (in_bytes) {
      for (const char c : bytes) ids.push_back(model_->bytes[static_cast<unsigned char>(c)]);
    } else if (!after_unknown || !model_->fuse_unknown) {
      put_unknown(bytes, ids);
    }
    after_unknown = !known && !in_bytes;
  }
}

void BpeTokenizer::put_unknown(std::string_view what, std::vector<TokenId>& ids) const {
  if (model_->unknown < 0) {
    throw Error(Errc::kInvalidArgument, model_->name + " has no token for the character of bytes " +
                                            hex_of(what) + ", and no unk_token");
  }
  ids.push_back(model_->unknown);
}

std::string BpeTokenizer::decode(const std::vector<TokenId>& ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto part = model_->texts.find(ids[i]);
    WEFT_REQUIRE(part.has_value(), "decode: id " + std::to_string(ids[i]) + " at position " +
                                       std::to_string(i) + " is no token of " + model_->name);
    text += *part;
  }
  std::size_t strip = 0;
  while (strip < text.size() && strip < static_cast<std::size_t>(model_->decoding.strip) &&
         text[strip] == ' ')
    ++strip;
  return text.substr(strip);
}

std::optional<TokenId> BpeTokenizer::id_of(std::string_view token) const {
  for (const IdOfText* ids : {&model_->added, &model_->vocab}) {
    if (const auto found = ids->find(token); found != ids->end()) return found->second;
  }
  return std::nullopt;
}

bool BpeTokenizer::round_trips() const {
  const bool prefixed =
      std::any_of(model_->stages.begin(), model_->stages.end(), [](const SplitStage& stage) {
        return stage.kind == SplitStage::Kind::kPrefix ||
               stage.kind == SplitStage::Kind::kMetaspace;
      });
  const bool all_bytes =
      std::all_of(model_->bytes.begin(), model_->bytes.end(), [](TokenId id) { return id >= 0; });
  return model_->byte_level && model_->normalizers.empty() && !prefixed && all_bytes;
}

}  // namespace weft::data::text::internal
