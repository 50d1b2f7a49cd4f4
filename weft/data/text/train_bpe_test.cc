#include "weft/data/text/train_bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/data/text/tokenizer.h"

namespace weft::data::text {
namespace {

using nlohmann::json;

TEST(TrainBpe, LearnsHuggingFacesVocabularyAndMerges) {
  const json theirs = json::parse(read_file(WEFT_REFERENCE "gpt2_prefix.json", 1 << 20))["model"];
  const json plain = json::parse(read_file(WEFT_REFERENCE "gpt2.json", 1 << 20))["model"];
  ASSERT_NE(theirs["vocab"], plain["vocab"]);
  const std::string ours =
      train_bpe({WEFT_REFERENCE "text.txt"},
                {.vocab_size = 500, .min_count = 0, .specials = {"<|endoftext|>", "<|pad|>"}});
  const json model = json::parse(ours)["model"];
  EXPECT_EQ(model["vocab"], plain["vocab"]);
  std::vector<std::string> merges;
  for (const json& pair : model["merges"])
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  EXPECT_EQ(merges, plain["merges"].get<std::vector<std::string>>());
}

TEST(TrainBpe, MakesATokenizerThatRoundTrips) {
  const std::string ours = train_bpe({WEFT_REFERENCE "text.txt"}, {.vocab_size = 400});
  EXPECT_EQ(ours, train_bpe({WEFT_REFERENCE "text.txt"}, {.vocab_size = 400}));
  const auto tokenizer = parse_tokenizer(ours, "ours");
  EXPECT_TRUE(tokenizer->round_trips());
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->id_of("<|endoftext|>"), 0);
  const std::string text = read_file(WEFT_REFERENCE "text.txt", 1 << 20);
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_LT(ids.size() * 3, text.size() * 2);
}

TEST(TrainBpe, StopsWhenNoPairIsFrequentEnough) {
  const TempDir dir;
  write_file_atomic(dir / "a", "abab abab abab");
  const auto tokenizer = parse_tokenizer(
      train_bpe({dir / "a"}, {.vocab_size = 1000, .min_count = 3, .specials = {}}), "ours");
  EXPECT_EQ(tokenizer->vocab_size(), 256 + 2);  // Merges: ab, abab. " abab" occurs only twice.
  EXPECT_EQ(parse_tokenizer(train_bpe({dir / "a"}, {.vocab_size = 257, .specials = {}}), "ours")
                ->vocab_size(),
            257);
}

TEST(TrainBpe, LeavesOutAByteOrderMarkAndRefusesUtf16) {
  const TempDir dir;
  write_file_atomic(dir / "a", "abab abab abab");
  write_file_atomic(dir / "marked",
                    "\xEF\xBB\xBF"
                    "abab abab abab");
  write_file_atomic(dir / "wide", std::string("\xFF\xFE"
                                              "a\0b\0",
                                              6));
  EXPECT_EQ(train_bpe({dir / "marked"}), train_bpe({dir / "a"}));
  EXPECT_THROW(train_bpe({dir / "wide"}), Error);
}

TEST(TrainBpe, LearnsNoMergeWhoseTextIsASpecialToken) {
  const TempDir dir;
  write_file_atomic(dir / "a", "abab abab abab");
  const auto tokenizer =
      parse_tokenizer(train_bpe({dir / "a"}, {.vocab_size = 1000, .specials = {"ab"}}), "ours");
  EXPECT_EQ(tokenizer->encode("ab"),
            (std::vector<TokenId>{*tokenizer->id_of("a"), *tokenizer->id_of("b")}));
  EXPECT_EQ(tokenizer->encode("ab", Specials::kRecognize), std::vector<TokenId>{0});
}

TEST(TrainBpe, RefusesSpecialTokensThatNoFileCanHave) {
  for (const char* special : {"a", "\xC4\xA0", " "}) {
    expect_refused([&] { train_bpe({}, {.specials = {special}}); }, Errc::kInvalidArgument,
                   "is one character, as the tokens of bytes are");
  }
  for (const char* special : {"\xFF\xFE", "<|caf\xE9|>"}) {
    expect_refused([&] { train_bpe({}, {.specials = {special}}); }, Errc::kInvalidArgument,
                   "is not in UTF-8");
  }
}

TEST(TrainBpe, RefusesAVocabularyWithoutRoomForBytes) {
  EXPECT_THROW(train_bpe({}, {.vocab_size = 256}), Error);
  EXPECT_THROW(train_bpe({}, {.specials = {"a", "a"}}), Error);
  EXPECT_THROW(train_bpe({"/nowhere"}, {}), Error);
}

}  // namespace
}  // namespace weft::data::text
