#include "weft/data/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"

namespace weft::data::text {
namespace {

using nlohmann::json;

std::string reference(const std::string& name) { return WEFT_REFERENCE + name; }

std::string bytes_of_all_kinds(std::uint64_t seed, std::size_t size) {
  constexpr std::string_view kPieces[] = {
      "the ",          "织", "é",        " ", "\n", "'s", "42", "\xff", "\xe7\xbb", "🧵",
      "<|endoftext|>", "\t", "\xc0\x80", "W"};
  Random random(seed);
  std::string text;
  while (text.size() < size) {
    text += kPieces[random.below(std::size(kPieces))];
    if (random.below(4) == 0) text += static_cast<char>(random.below(256));
  }
  return text;
}

// Cases of reference.py: {text, ids, ids if special tokens are text, decoded text}.
class TokenizerReference : public ::testing::TestWithParam<const char*> {
 protected:
  const json cases_ = json::parse(read_file(reference("cases.json"), 1 << 20))[GetParam()];
  const std::unique_ptr<Tokenizer> tokenizer_ =
      load_tokenizer(reference(GetParam() + std::string(".json")));
};

TEST_P(TokenizerReference, GivesTheIdsThatHuggingFaceGives) {
  ASSERT_GT(cases_.size(), 40u);
  for (const json& row : cases_) {
    const auto text = row[0].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, Specials::kRecognize), row[1].get<std::vector<TokenId>>())
        << row[0];
    EXPECT_EQ(tokenizer_->encode(text, Specials::kAsText), row[2].get<std::vector<TokenId>>())
        << row[0];
    // Encodes again, with all words in the cache.
    EXPECT_EQ(tokenizer_->encode(text, Specials::kRecognize), row[1].get<std::vector<TokenId>>())
        << row[0];
  }
}

TEST_P(TokenizerReference, DecodesAsHuggingFaceDoes) {
  for (const json& row : cases_)
    EXPECT_EQ(tokenizer_->decode(row[1].get<std::vector<TokenId>>()), row[3].get<std::string>())
        << row[0];
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerReference,
                         ::testing::Values("gpt2", "gpt2_prefix", "llama3", "qwen", "llama2",
                                           "metaspace", "digits"),
                         [](const auto& info) { return std::string(info.param); });

// A small tokenizer.json with one part replaced.
json small() {
  return json::parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
          "decoder": {"type": "ByteLevel"}, "normalizer": null,
          "added_tokens": [{"id": 3, "content": "<s>", "special": true}]})");
}
void expect_small_refused(const char* pointer, const std::string& value, Errc code,
                          const std::string& what) {
  json document = small();
  document[json::json_pointer(pointer)] = json::parse(value);
  expect_refused([&] { parse_tokenizer(document.dump(), "small.json"); }, code, what);
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  for (const char* name : {"gpt2", "llama3", "digits"}) {
    const auto tokenizer = load_tokenizer(reference(name + std::string(".json")));
    EXPECT_TRUE(tokenizer->round_trips());
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const std::string text = bytes_of_all_kinds(seed, 1 + seed * 7);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, Specials::kRecognize)), text);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, Specials::kAsText)), text);
    }
  }
}

TEST(Tokenizer, RoundTripsInvalidUtf8ByByteFallback) {
  const auto tokenizer = load_tokenizer(reference("llama2.json"));
  EXPECT_FALSE(tokenizer->round_trips());  // U+2581 becomes a space.
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::string text = bytes_of_all_kinds(seed, 100);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, Specials::kAsText)), text);
  }
}

TEST(Tokenizer, DecodesWhatFollowsAText) {
  for (const char* name : {"llama2", "metaspace", "gpt2"}) {
    const auto tokenizer = load_tokenizer(reference(name + std::string(".json")));
    const std::string text = "This program is free software";
    const std::vector<TokenId> ids = tokenizer->encode(text);
    for (std::size_t i = 1; i < ids.size(); ++i) {
      const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(i);
      const std::vector<TokenId> before(ids.begin(), middle), after(middle, ids.end());
      EXPECT_EQ(tokenizer->decode(before) + tokenizer->decode_after(before, after), text) << name;
      EXPECT_EQ(tokenizer->decode_after({ids[i - 1]}, after),
                tokenizer->decode_after(before, after))
          << name;
    }
  }
}

TEST(Tokenizer, KnowsWhetherItRoundTrips) {
  for (const char* name : {"gpt2_prefix", "qwen", "metaspace"})
    EXPECT_FALSE(load_tokenizer(reference(name + std::string(".json")))->round_trips());
}

TEST(Tokenizer, EncodesTheSameInClonesOnOtherThreads) {
  const auto tokenizer = load_tokenizer(reference("llama3.json"));
  const std::string text = bytes_of_all_kinds(9, 5000);
  std::vector<std::vector<TokenId>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids)
    threads.emplace_back(
        [&mine, &text, clone = tokenizer->clone()] { mine = clone->encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& mine : ids) EXPECT_EQ(mine, tokenizer->encode(text));
}

TEST(Tokenizer, EncodesLongWordsInNearlyLinearTime) {
  const auto tokenizer = load_tokenizer(reference("llama3.json"));
  for (const std::string& word : {std::string(100000, 'e'), std::string(100000, ' '),
                                  std::string(100000, '\n'), std::string(100000, '\xff')}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
  }
}

TEST(Tokenizer, FindsTokensByTheirText) {
  const auto tokenizer = load_tokenizer(reference("gpt2.json"));
  EXPECT_EQ(tokenizer->id_of("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->id_of("Ġthe"), tokenizer->encode(" the").at(0));
  EXPECT_EQ(tokenizer->id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->vocab_size(), 500);
}

TEST(Tokenizer, RefusesIdsWithoutAToken) {
  const auto tokenizer = load_tokenizer(reference("gpt2.json"));
  expect_refused(
      [&] {
        tokenizer->decode({1, 2, 500});
      },
      Errc::kInvalidArgument, "id 500 at position 2");
  expect_refused([&] { tokenizer->decode({-1}); }, Errc::kInvalidArgument, "id -1 at position 0");
  for (const auto& one : {load_tokenizer(reference("gpt2.json")), byte_tokenizer()}) {
    const auto size = static_cast<TokenId>(one->vocab_size());
    for (const TokenId id : {0, size - 1}) EXPECT_TRUE(one->has_token(id)) << id;
    for (const TokenId id : {-1, size}) EXPECT_FALSE(one->has_token(id)) << id;
  }
}

TEST(Tokenizer, NamesAByteWithoutAToken) {
  const auto tokenizer = parse_tokenizer(small().dump(), "small.json");
  EXPECT_EQ(tokenizer->encode("ab"), (std::vector<TokenId>{2}));
  expect_refused([&] { tokenizer->encode("abc"); }, Errc::kInvalidArgument,
                 "small.json has no token for the character of bytes 0x63");
}

TEST(TokenizerJson, NamesAComponentThatItDoesNotSupport) {
  const Errc config = Errc::kBadConfig;
  expect_small_refused("/model/type", R"("Unigram")", config,
                       "small.json: model: weft does not support the type 'Unigram'");
  expect_small_refused("/model/dropout", "0.1", config, "small.json: model: dropout");
  expect_small_refused("/model/end_of_word_suffix", R"("</w>")", config, "end_of_word_suffix");
  expect_small_refused("/model/byte_fallback", "true", config, "byte_fallback beside");
  expect_small_refused("/normalizer", R"({"type": "NFKC"})", config,
                       "small.json: normalizer: weft does not support the type 'NFKC'");
  expect_small_refused(
      "/normalizer",
      R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})", config,
      "normalizer.normalizers[1]: weft does not support the type 'Lowercase'");
  expect_small_refused("/pre_tokenizer", R"({"type": "Whitespace"})", config,
                       "pre_tokenizer: weft does not support the type 'Whitespace'");
  expect_small_refused("/pre_tokenizer",
                       R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"})",
                       config, "'Removed'");
  expect_small_refused("/pre_tokenizer",
                       R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
                       config, "'a(' cannot be used");
  expect_small_refused(
      "/pre_tokenizer",
      R"({"type": "Split", "pattern": {"Regex": "[\\p{L}&&[^\\p{Han}]]"}, "behavior": "Isolated"})",
      config, "a class within a class");
  for (const char* pattern :
       {"^a", "a$", "(?m:a)", "a(?i)b", "(?s)a", "a{1,3}+", "a{2}+", "a{,2}"}) {
    expect_small_refused("/pre_tokenizer",
                         R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" +
                             std::string(pattern) + "\"}}",
                         config, ", which libraries read differently");
  }
  for (const char* pattern : {"[^a$]", "(?i:'s|'t)", "(?i)a|b", "\\\\p{L}{1,3}|a?+|b++|\\\\$"}) {
    json document = small();
    document["pre_tokenizer"] = json::parse(
        R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
            "pattern": {"Regex": ")" +
        std::string(pattern) + R"("}}, {"type": "ByteLevel", "add_prefix_space": false}]})");
    parse_tokenizer(document.dump(), "small.json");
  }
  expect_small_refused("/pre_tokenizer/trim", "true", config,
                       "small.json: pre_tokenizer: 'trim' is not supported");
  expect_small_refused("/decoder", R"({"type": "WordPiece"})", config,
                       "decoder: weft does not support the type 'WordPiece'");
  for (const char* parts :
       {R"({"type": "Fuse"}, {"type": "ByteFallback"})",
        R"({"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})",
        R"({"type": "Replace", "pattern": {"String": "a"}, "content": " "},
            {"type": "Replace", "pattern": {"String": "b"}, "content": " "})"}) {
    expect_small_refused(
        "/decoder", R"({"type": "Sequence", "decoders": [)" + std::string(parts) + "]}", config,
        "decoder.decoders[1]: the order is Replace, ByteFallback, Fuse, Strip");
  }
  expect_small_refused("/decoder", "null", config, "there is no decoder");
  expect_small_refused("/pre_tokenizer", "null", config, "only one of pre_tokenizer and decoder");
  expect_small_refused("/added_tokens/0/lstrip", "true", config, "added_tokens[0]: lstrip");
}

TEST(TokenizerJson, RefusesContradictions) {
  const Errc corrupt = Errc::kCorrupt;
  expect_small_refused("/model/merges/0", R"("a c")", corrupt,
                       "small.json: model.merges[0]: there is no token 'c'");
  expect_small_refused("/model/merges/0", R"("b a")", corrupt, "there is no token 'ba'");
  expect_small_refused("/model/merges/0", R"(["a"])", corrupt, "a merge must have two tokens");
  expect_small_refused("/model/merges/0", R"("a b c")", corrupt,
                       "'a b c' does not have two tokens");
  expect_small_refused("/model/vocab/b", "0", corrupt, "two tokens have the id 0");
  expect_small_refused("/model/vocab/b", "-1", corrupt, "the id of 'b'");
  expect_small_refused("/model/vocab/b", "4000000000", corrupt, "the id of 'b'");
  expect_small_refused("/model/vocab", "[]", corrupt,
                       "small.json: model.vocab: expected an object");
  expect_small_refused("/model/unk_token", R"("<unk>")", corrupt, "there is no token '<unk>'");
  expect_small_refused("/added_tokens/0/id", "2", corrupt, "the id of '<s>'");
  expect_small_refused("/added_tokens/0/content", R"("")", corrupt, "the content is empty");
  expect_small_refused("/model", "null", corrupt, "there is no \"model\"");
}

TEST(TokenizerJson, RefusesInvalidDeepOrLongJson) {
  const auto parse = [](const std::string& text) {
    return [text] { parse_tokenizer(text, "x.json", {.max_bytes = 1 << 20}); };
  };
  expect_refused(parse("{\"model\": "), Errc::kCorrupt, "x.json: not JSON");
  expect_refused(parse("{\"a\": \"\xff\"}"), Errc::kCorrupt, "x.json: not JSON");
  expect_refused(parse("[]"), Errc::kCorrupt, "x.json: expected an object");
  expect_refused(parse(std::string(500000, '[')), Errc::kCorrupt, "x.json: nested deeper than 32");
  expect_refused(parse(std::string(1 << 21, ' ')), Errc::kCorrupt, "x.json: longer than");
  expect_refused([] { load_tokenizer("/nowhere/x.json"); }, Errc::kInvalidArgument,
                 "/nowhere/x.json");
}

TEST(TokenizerJson, StopsARegularExpressionThatTakesTooManySteps) {
  json document = small();
  document["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(a+)+\\z"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "add_prefix_space": false}]})");
  const auto tokenizer = parse_tokenizer(document.dump(), "slow.json");
  expect_refused([&] { tokenizer->encode(std::string(64, 'a') + "b"); }, Errc::kBadConfig,
                 "slow.json: pre_tokenizer.pretokenizers[0]");
}

// Each step multiplies the length of a text by 100000.
TEST(TokenizerJson, RefusesTextsThatTheNormalizerMakesTooLong) {
  const json longer = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100000, 'a')}};
  json document = small();
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<json>(16, longer)}};
  const auto parse = [&] { return parse_tokenizer(document.dump(), "long.json"); };
  const auto tokenizer = parse();
  expect_refused([&] { tokenizer->encode("a"); }, Errc::kInvalidArgument,
                 "the normalizer of long.json makes the text 2 GiB or more");
  EXPECT_EQ(tokenizer->encode("b"), (std::vector<TokenId>{1}));
  document["added_tokens"].push_back({{"id", 9}, {"content", "<a>"}, {"normalized", true}});
  expect_refused(parse, Errc::kBadConfig,
                 "added_tokens[1]: the normalizer makes the added tokens longer than 134217728");
  expect_small_refused("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "  "})",
                       Errc::kCorrupt, "the replacement '  ' is not one character");
}

TEST(ByteTokenizer, IsAlsoATokenizerJson) {
  const auto bytes = byte_tokenizer({"<s>", "<ss>"}),
             read = parse_tokenizer(byte_tokenizer_json({"<s>", "<ss>"}), "bytes.json");
  EXPECT_EQ(read->vocab_size(), bytes->vocab_size());
  EXPECT_TRUE(read->round_trips());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = bytes_of_all_kinds(seed, 200) + "<ss>";
    const auto ids = bytes->encode(text, Specials::kRecognize);
    EXPECT_EQ(read->encode(text, Specials::kRecognize), ids);
    EXPECT_EQ(read->decode(ids), text);
  }
}

TEST(ByteTokenizer, GivesBytesAndSpecialTokens) {
  const auto tokenizer = byte_tokenizer({"<s>", "<ss>"});
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(tokenizer->encode("a<s>\xff", Specials::kAsText),
            (std::vector<TokenId>{'a', '<', 's', '>', 255}));
  EXPECT_EQ(tokenizer->encode("a<s>\xff<ss><", Specials::kRecognize),
            (std::vector<TokenId>{'a', 256, 255, 257, '<'}));
  EXPECT_EQ(tokenizer->id_of("<ss>"), 257);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = bytes_of_all_kinds(seed, 64);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, Specials::kRecognize)), text);
  }
  EXPECT_NE(tokenizer->fingerprint(), byte_tokenizer()->fingerprint());
  expect_refused(
      [] {
        byte_tokenizer({"<s>", "<s>"});
      },
      Errc::kInvalidArgument, "<s> occurs twice");
  expect_refused([&] { tokenizer->decode({258}); }, Errc::kInvalidArgument, "id 258 at position 0");
}

}  // namespace
}  // namespace weft::data::text
