// BpeTokenizer: the Tokenizer of a tokenizer.json (Model).
#pragma once

#include <memory>

#include "weft/data/text/internal/model.h"
#include "weft/data/text/internal/word_cache.h"

namespace weft::data::text::internal {

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(std::shared_ptr<const Model> model);

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids, Specials specials) override;
  std::string decode(const std::vector<TokenId>& ids) const override;
  std::int64_t vocab_size() const override { return model_->texts.size(); }
  bool has_token(TokenId id) const override { return model_->texts.find(id).has_value(); }
  std::optional<TokenId> id_of(std::string_view token) const override;
  bool round_trips() const override;
  std::uint32_t fingerprint() const override { return model_->fingerprint; }
  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<BpeTokenizer>(model_);
  }

 private:
  void encode_raw(std::string_view text, bool at_start, std::vector<TokenId>& ids,
                  Specials specials);
  void encode_words(std::string_view text, bool at_start, std::vector<TokenId>& ids);
  void encode_word(std::string_view word, std::vector<TokenId>& ids);
  void put_bytes(std::string_view word, std::vector<TokenId>& ids) const;
  void put_characters(std::string_view word, std::vector<TokenId>& ids) const;
  void put_unknown(std::string_view what, std::vector<TokenId>& ids) const;

  std::shared_ptr<const Model> model_;
  Splitter splitter_;
  Merger merger_;
  WordCache cache_;
};

}  // namespace weft::data::text::internal
