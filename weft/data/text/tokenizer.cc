#include "weft/data/text/tokenizer.h"

#include <algorithm>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/text/internal/added_tokens.h"
#include "weft/data/text/internal/bpe_tokenizer.h"

namespace weft::data::text {
namespace {

constexpr TokenId kBytes = 256;

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::vector<std::string> specials) : specials_(std::move(specials)) {
    std::string name = "weft bytes 1";
    for (std::size_t i = 0; i < specials_.size(); ++i) {
      WEFT_REQUIRE(!specials_[i].empty(),
                   "byte_tokenizer: special token " + std::to_string(i) + " is empty");
      WEFT_REQUIRE(std::count(specials_.begin(), specials_.end(), specials_[i]) == 1,
                   "byte_tokenizer: " + specials_[i] + " occurs twice");
      tokens_.add(specials_[i], kBytes + static_cast<TokenId>(i), true);
      name += '\0' + specials_[i];
    }
    fingerprint_ = crc32c(name.data(), name.size());
  }

  void encode(std::string_view text, std::vector<TokenId>& ids, Specials specials) override {
    std::size_t done = 0;
    const auto put = [&](std::size_t end) {
      for (; done < end; ++done) ids.push_back(static_cast<unsigned char>(text[done]));
    };
    while (specials == Specials::kRecognize) {
      const auto match = tokens_.next(text, done, specials);
      if (!match) break;
      put(match->begin);
      ids.push_back(match->id);
      done = match->end;
    }
    put(text.size());
  }

  std::string decode(const std::vector<TokenId>& ids) const override {
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      WEFT_REQUIRE(ids[i] >= 0 && ids[i] < vocab_size(),
                   "decode: id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                       " is not below " + std::to_string(vocab_size()));
      if (ids[i] < kBytes) {
        text += static_cast<char>(ids[i]);
      } else {
        text += specials_[static_cast<std::size_t>(ids[i] - kBytes)];
      }
    }
    return text;
  }

  std::int64_t vocab_size() const override {
    return kBytes + static_cast<std::int64_t>(specials_.size());
  }

  bool has_token(TokenId id) const override { return id >= 0 && id < vocab_size(); }

  std::optional<TokenId> id_of(std::string_view token) const override {
    const auto found = std::find(specials_.begin(), specials_.end(), token);
    if (found != specials_.end()) return kBytes + static_cast<TokenId>(found - specials_.begin());
    if (token.size() == 1) return static_cast<unsigned char>(token[0]);
    return std::nullopt;
  }

  bool round_trips() const override { return true; }
  std::uint32_t fingerprint() const override { return fingerprint_; }
  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<ByteTokenizer>(specials_);
  }

 private:
  std::vector<std::string> specials_;
  internal::AddedTokens tokens_;
  std::uint32_t fingerprint_ = 0;
};

}  // namespace

std::string Tokenizer::decode_after(const std::vector<TokenId>& before,
                                    const std::vector<TokenId>& ids) const {
  std::vector<TokenId> all = before;
  all.insert(all.end(), ids.begin(), ids.end());
  return decode(all).substr(decode(before).size());
}

std::unique_ptr<Tokenizer> byte_tokenizer(std::vector<std::string> specials) {
  return std::make_unique<ByteTokenizer>(std::move(specials));
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& name,
                                           TokenizerLimits limits) {
  return std::make_unique<internal::BpeTokenizer>(
      std::make_shared<internal::Model>(internal::parse_model(json, name, limits)));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, TokenizerLimits limits) {
  return parse_tokenizer(read_file(path, limits.max_bytes), path, limits);
}

}  // namespace weft::data::text
