#include "weft/data/text/train_bpe.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/kind/file_kind.h"
#include "weft/data/text/internal/byte_alphabet.h"
#include "weft/data/text/internal/characters.h"
#include "weft/data/text/internal/components.h"
#include "weft/data/text/tokenizer.h"

namespace weft::data::text {
namespace {

using Pair = std::pair<TokenId, TokenId>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const auto key =
        static_cast<std::uint64_t>(pair.first) << 32 | static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20);
  }
};

struct Word {
  std::vector<TokenId> ids;
  std::int64_t count = 0;
};

// A pair with its count and its words at the time when it was queued. The count may have decreased
// since then; learn() checks it when it takes the pair from the queue.
struct Candidate {
  Pair pair;
  std::int64_t count = 0;
  std::vector<std::size_t> words;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  // The first `specials` tokens are special: no merge gives them.
  Learner(std::vector<Word> words, std::vector<std::string> tokens, std::size_t specials)
      : words_(std::move(words)),
        tokens_(std::move(tokens)),
        specials_(static_cast<TokenId>(specials)) {
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      id_of_[tokens_[id]] = static_cast<TokenId>(id);
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const auto& ids = words_[w].ids;
      for (std::size_t i = 1; i < ids.size(); ++i) change({ids[i - 1], ids[i]}, 1, w);
    }
    queue_found();
  }

  void learn(std::int64_t vocab_size, std::int64_t min_count) {
    while (static_cast<std::int64_t>(tokens_.size()) < vocab_size && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      if (best.count != counts_[best.pair]) {
        best.count = counts_[best.pair];
        queue_.push(std::move(best));
        continue;
      }
      if (best.count < std::max<std::int64_t>(1, min_count)) break;
      const std::string joined = tokens_[static_cast<std::size_t>(best.pair.first)] +
                                 tokens_[static_cast<std::size_t>(best.pair.second)];
      const auto [entry, is_new] = id_of_.try_emplace(joined, static_cast<TokenId>(tokens_.size()));
      if (!is_new && entry->second < specials_) continue;
      if (is_new) tokens_.push_back(joined);
      merges_.push_back(best.pair);
      for (const std::size_t word : best.words) join(word, best.pair, entry->second);
      queue_found();
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  void change(Pair pair, int by, std::size_t word) {
    counts_[pair] += by * words_[word].count;
    if (by < 0) return;
    auto& words = found_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void queue_found() {
    for (auto& [pair, words] : found_) {
      if (counts_[pair] > 0) queue_.push({pair, counts_[pair], std::move(words)});
    }
    found_.clear();
  }

  // Merges every occurrence of the pair in the word, from the left.
  void join(std::size_t word, Pair pair, TokenId id) {
    std::vector<TokenId>& ids = words_[word].ids;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] != pair.first || ids[i + 1] != pair.second) continue;
      ids[i] = id;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      if (i > 0) {
        change({ids[i - 1], pair.first}, -1, word);
        change({ids[i - 1], id}, 1, word);
      }
      if (i + 1 < ids.size()) {
        change({pair.second, ids[i + 1]}, -1, word);
        change({id, ids[i + 1]}, 1, word);
      }
    }
  }

  std::vector<Word> words_;
  std::vector<std::string> tokens_;  // As tokenizer.json writes them.
  const TokenId specials_;
  std::unordered_map<std::string, TokenId> id_of_;
  std::unordered_map<Pair, std::int64_t, PairHash> counts_;
  std::map<Pair, std::vector<std::size_t>> found_;  // New since the last queue_found().
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

// The text with "?" for each byte that is not ASCII.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return text;
}

// Returns the special tokens, then the bytes in the order of their characters.
std::vector<std::string> first_tokens(const BpeTrainOptions& options,
                                      std::array<TokenId, 256>& byte_ids) {
  std::vector<std::string> tokens = options.specials;
  for (const std::string& token : tokens) {
    WEFT_REQUIRE(!token.empty() && std::count(tokens.begin(), tokens.end(), token) == 1,
                 "train_bpe: a special token is empty or occurs twice");
    std::size_t characters = 0;
    for (std::size_t at = 0; at < token.size(); ++characters) {
      const internal::Character next = internal::character_at(token, at);
      WEFT_REQUIRE(next.valid, "train_bpe: the special token " + internal::shown(printable(token)) +
                                   " is not in UTF-8");
      at += next.length;
    }
    WEFT_REQUIRE(characters > 1, "train_bpe: the special token " + internal::shown(token) +
                                     " is one character, as the tokens of bytes are; use a longer "
                                     "one, such as <|pad|>");
  }
  std::vector<unsigned> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0u);
  std::sort(bytes.begin(), bytes.end(), [](unsigned a, unsigned b) {
    return internal::kByteCharacters[a] < internal::kByteCharacters[b];
  });
  for (const unsigned byte : bytes) {
    const char one = static_cast<char>(byte);
    byte_ids[byte] = static_cast<TokenId>(tokens.size());
    tokens.push_back(internal::written_as({&one, 1}));
  }
  WEFT_REQUIRE(options.vocab_size >= static_cast<std::int64_t>(tokens.size()),
               "train_bpe: a vocabulary of " + std::to_string(options.vocab_size) +
                   " has no room for " + std::to_string(tokens.size()) +
                   " bytes and special tokens");
  return tokens;
}

nlohmann::json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}};
}

std::vector<Word> count_words(const std::vector<std::string>& files, const BpeTrainOptions& options,
                              const std::array<TokenId, 256>& byte_ids) {
  const nlohmann::json document = {{"pre_tokenizer", byte_level()}};
  internal::Splitter splitter(
      internal::parse_pre_tokenizer(internal::Node(document, "train_bpe")).stages);
  std::map<std::string, std::int64_t, std::less<>> counts;
  for (const std::string& path : files) {
    const std::string text = read_file(path, options.max_bytes);
    if (const auto kind = wrong_kind(text)) throw Error(Errc::kBadConfig, path + " is " + *kind);
    for (std::size_t begin = mark_bytes(text); begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
      splitter.split(
          std::string_view(text).substr(begin, end - begin), false, [&](std::string_view word) {
            const auto found = counts.find(word);
            found == counts.end() ? void(counts.emplace(word, 1)) : void(++found->second);
          });
      begin = end;
    }
  }
  std::vector<Word> words;
  for (const auto& [text, count] : counts) {
    words.push_back({{}, count});
    for (const char c : text) words.back().ids.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }
  return words;
}

// Returns a byte-level tokenizer.json. Special tokens have the ids from `first_special` on.
nlohmann::json render(const nlohmann::json& vocab, const nlohmann::json& merges,
                      const std::vector<std::string>& specials, std::size_t first_special) {
  nlohmann::json added = nlohmann::json::array();
  for (std::size_t i = 0; i < specials.size(); ++i) {
    added.push_back({{"id", first_special + i},
                     {"content", specials[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::json model = {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", nullptr},
                                {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", false},
                                {"vocab", vocab},
                                {"merges", merges}};
  return {{"version", "1.0"},          {"truncation", nullptr},   {"padding", nullptr},
          {"added_tokens", added},     {"normalizer", nullptr},   {"pre_tokenizer", byte_level()},
          {"post_processor", nullptr}, {"decoder", byte_level()}, {"model", model}};
}

nlohmann::json render(const Learner& learner, const std::vector<std::string>& specials) {
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  const auto& tokens = learner.tokens();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  for (const auto& [left, right] : learner.merges()) {
    merges.push_back(nlohmann::json::array(
        {tokens[static_cast<std::size_t>(left)], tokens[static_cast<std::size_t>(right)]}));
  }
  return render(vocab, merges, specials, 0);
}

}  // namespace

std::string train_bpe(const std::vector<std::string>& files, const BpeTrainOptions& options) {
  std::array<TokenId, 256> byte_ids{};
  std::vector<std::string> tokens = first_tokens(options, byte_ids);
  Learner learner(count_words(files, options, byte_ids), std::move(tokens),
                  options.specials.size());
  learner.learn(options.vocab_size, options.min_count);
  return render(learner, options.specials).dump();
}

std::string byte_tokenizer_json(const std::vector<std::string>& specials) {
  byte_tokenizer(specials);  // Throws for invalid special tokens.
  nlohmann::json vocab = nlohmann::json::object();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    vocab[internal::written_as({&one, 1})] = byte;
  }
  for (std::size_t i = 0; i < specials.size(); ++i) vocab[specials[i]] = 256 + i;
  return render(vocab, nlohmann::json::array(), specials, 256).dump();
}

}  // namespace weft::data::text
