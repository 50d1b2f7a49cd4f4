#include "weft/data/text/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/testing/file_faults.h"
#include "weft/base/testing/refusal.h"
#include "weft/data/text/tokenize_file.h"

namespace weft::data::text {
namespace {

std::vector<std::int64_t> all_of(const TokenFile& file) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  return names;
}

// Writes without a flush to disk, which would take milliseconds.
void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TokenFiles : public ::testing::Test {
 protected:
  std::string write(std::int64_t vocab_size, const std::vector<TokenId>& ids,
                    std::optional<TokenId> end_token = std::nullopt) {
    TokenWriter writer(path_, {vocab_size, 7, end_token});
    writer.append(ids);
    writer.finish();
    return path_;
  }
  // Expects an error from opening a file with one byte of its header changed. `sealed`: the header
  // has a correct checksum again.
  void expect_header_refused(std::size_t at, char value, bool sealed, const std::string& what) {
    if (good_.empty()) good_ = read_file(write(300, {1, 2, 3}), 1 << 20);
    std::string bytes = good_;
    bytes[at] = value;
    const std::uint32_t sum = crc32c(bytes.data(), 60);
    if (sealed) bytes.replace(60, 4, reinterpret_cast<const char*>(&sum), 4);
    put(path_, bytes);
    expect_refused([&] { TokenFile::open(path_); }, Errc::kCorrupt, path_ + ": " + what);
  }

  TempDir dir_;
  const std::string path_ = dir_ / "tokens.weft";
  std::string good_;
};

TEST_F(TokenFiles, RoundTripWithTwoOrFourBytesAToken) {
  for (const auto& [vocab, bytes] : {std::pair{65536, 2}, {65537, 4}, {1 << 30, 4}}) {
    const std::vector<TokenId> ids = {0, 1, vocab - 1, 5};
    const TokenFile file = TokenFile::open(write(vocab, ids, 5));
    EXPECT_EQ(all_of(file), std::vector<std::int64_t>(ids.begin(), ids.end()));
    EXPECT_EQ(std::filesystem::file_size(path_), 64u + 4u * static_cast<unsigned>(bytes));
    EXPECT_EQ(file.info().vocab_size, vocab);
    EXPECT_EQ(file.info().fingerprint, 7u);
    EXPECT_EQ(file.info().end_token, 5);
    file.verify();
  }
}

TEST_F(TokenFiles, HoldMillionsOfTokens) {
  std::vector<TokenId> ids(1500000);
  std::iota(ids.begin(), ids.end(), 0);
  const TokenFile file = TokenFile::open(write(1500000, ids));
  file.verify();
  std::vector<std::int64_t> last(2);
  file.read(file.size() - 2, last);
  EXPECT_EQ(last, (std::vector<std::int64_t>{1499998, 1499999}));
}

TEST_F(TokenFiles, DoNotExistUntilFinishedAndLeaveNoTemporaryFile) {
  {
    TokenWriter writer(path_, {10});
    writer.append(std::vector<TokenId>{1});
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  EXPECT_TRUE(names_in(dir_.path()).empty());
  write(10, {1});
  EXPECT_EQ(names_in(dir_.path()), std::vector<std::string>{"tokens.weft"});
}

// As on vboxsf and 9p.
TEST_F(TokenFiles, AreWrittenWhereFoldersCannotBeFlushed) {
  int flushes = 0;
  const FileFaults faults([&](FileCall call, const std::string& path) {
    const bool is_here = call == FileCall::kFlush && path == dir_.path();
    flushes += is_here ? 1 : 0;
    return is_here ? EINVAL : 0;
  });
  EXPECT_EQ(TokenFile::open(write(10, {1, 2})).size(), 2);
  EXPECT_EQ(flushes, 1);
}

TEST_F(TokenFiles, RefuseATokenOutsideTheVocabulary) {
  TokenWriter writer(path_, {10});
  expect_refused(
      [&] {
        writer.append(std::vector<TokenId>{1, 10});
      },
      Errc::kInvalidArgument, "token 10 is not in the vocabulary of 10");
  expect_refused([&] { writer.append(std::vector<TokenId>{-1}); }, Errc::kInvalidArgument,
                 "token -1");
  EXPECT_EQ(writer.size(), 0);
  expect_refused([&] { TokenWriter(path_, {0}); }, Errc::kInvalidArgument, "a vocabulary of 0");
  expect_refused([&] { TokenWriter(path_, {10, 0, 10}); }, Errc::kInvalidArgument, "end token 10");
}

TEST_F(TokenFiles, AreRefusedWithADamagedHeader) {
  expect_header_refused(0, 'X', true, "not a token file");
  expect_header_refused(8, 2, true, "version 2");
  expect_header_refused(24, 1, false, "the header's checksum is wrong");
  expect_header_refused(12, 4, true, "4 bytes a token for a vocabulary of 300");
  expect_header_refused(16, 4, true, "its header says 4 tokens of 2 bytes, but 6 bytes follow");
  expect_header_refused(23, '\x7f', true, "its header says");
  expect_header_refused(27, '\x7f', true, "2 bytes a token for a vocabulary");
  expect_header_refused(27, '\xff', true, "a vocabulary of");
  expect_header_refused(35, 0x70, true, "end token");
  expect_header_refused(40, 1, true, "reserved bytes");
}

TEST_F(TokenFiles, AreRefusedWhenTruncatedOrLonger) {
  const std::string bytes = read_file(write(300, {1, 2, 3}), 1 << 20);
  for (const std::size_t size : {0, 7, 8, 40, 63, 64, 65, 68, 69}) {
    put(path_, bytes.substr(0, size));
    EXPECT_THROW(TokenFile::open(path_), Error) << size;
  }
  put(path_, bytes + "xy");
  expect_refused([&] { TokenFile::open(path_); }, Errc::kCorrupt, "8 bytes follow");
  expect_refused([&] { TokenFile::open(dir_ / "none"); }, Errc::kInvalidArgument, "cannot open");
  expect_refused([&] { TokenFile::open(dir_.path()); }, Errc::kInvalidArgument, "is not a file");
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  expect_refused([&] { TokenFile::open(dir_ / "pipe"); }, Errc::kInvalidArgument, "is not a file");
}

TEST_F(TokenFiles, NameATokenThatIsNotInTheVocabulary) {
  std::string bytes = read_file(write(300, {1, 2, 3}), 1 << 20);
  bytes[64 + 3] = 2;  // token 1 is 514
  put(path_, bytes);
  const TokenFile file = TokenFile::open(path_);
  std::vector<std::int64_t> out(1);
  file.read(0, out);
  expect_refused([&] { file.read(1, out); }, Errc::kCorrupt,
                 path_ + ": token 1 is 514, not below the vocabulary of 300");
  bytes[64 + 3] = 0;
  bytes[64 + 2] = 9;  // In the vocabulary, but not the token that was written.
  put(path_, bytes);
  expect_refused([&] { TokenFile::open(path_).verify(); }, Errc::kCorrupt,
                 "checksum of its tokens is wrong");
}

TEST_F(TokenFiles, RefuseRangesOutsideTheFile) {
  const TokenFile file = TokenFile::open(write(300, {1, 2, 3}));
  std::vector<std::int64_t> out(2);
  for (const std::int64_t begin : {std::int64_t{-1}, std::int64_t{2}, std::int64_t{4},
                                   std::numeric_limits<std::int64_t>::max()}) {
    expect_refused([&] { file.read(begin, out); }, Errc::kInvalidArgument, "of 3");
  }
}

TEST_F(TokenFiles, AreSplitBehindADocumentsEnd) {
  const TokenFile file = TokenFile::open(write(10, {1, 2, 9, 3, 4, 5, 9, 6, 9, 7}, 9));
  const TokenSplit split = split_tokens(file, 0.5);
  EXPECT_EQ(split.train.end, 7);
  EXPECT_EQ(split.validation.begin, 7);
  EXPECT_EQ(split.validation.end, 10);
  EXPECT_EQ(split_tokens(file, 0.3).train.end, 7);  // The cut is already at the end of a document.
  EXPECT_EQ(split_tokens(file, 0).validation.size(), 0);
  EXPECT_EQ(split_tokens(TokenFile::open(write(10, {1, 2, 3, 4})), 0.25).train.end, 3);
  expect_refused([&] { split_tokens(file, 1.0); }, Errc::kInvalidArgument,
                 "must be at least 0 and below 1");
}

class TokenizeFiles : public TokenFiles {
 protected:
  std::vector<std::int64_t> tokens(const std::string& text, TokenizeOptions options) {
    put(dir_ / "a.txt", text);
    const auto tokenizer = byte_tokenizer({"|"});
    report_ = tokenize_files({dir_ / "a.txt"}, path_, *tokenizer, options);
    const TokenFile file = TokenFile::open(path_);
    file.expect(*tokenizer);
    file.verify();
    return all_of(file);
  }
  // The text of the file's ids, with "|" for the end token.
  std::string spelled(const std::string& text, Documents documents) {
    return byte_tokenizer({"|"})->decode([&] {
      const auto ids = tokens(text, {.documents = documents, .end_token = "|"});
      return std::vector<TokenId>(ids.begin(), ids.end());
    }());
  }
  TokenizeReport report_;
};

TEST_F(TokenizeFiles, EndEachDocumentByItsToken) {
  const std::string text = "one\ntwo\n\n\nthree\r\n\r\nfour";
  EXPECT_EQ(spelled(text, Documents::kFile), text + "|");
  EXPECT_EQ(spelled(text, Documents::kLine), "one|two|three|four|");
  EXPECT_EQ(spelled(text, Documents::kBlank), "one\ntwo|three|four|");
  EXPECT_EQ(report_.documents, 3);
  EXPECT_EQ(report_.bytes, 7 + 5 + 4);
  EXPECT_EQ(report_.tokens, 7 + 5 + 4 + 3);
  EXPECT_EQ(spelled("", Documents::kFile), "");
  EXPECT_EQ(spelled("\n\n", Documents::kLine), "");
}

TEST_F(TokenizeFiles, TakeLinesThatEndInACarriageReturnAndALineFeed) {
  const std::string text = "one\r\ntwo\r\n\r\nth\rree\r\n";
  EXPECT_EQ(spelled(text, Documents::kFile), text + "|");
  EXPECT_EQ(spelled(text, Documents::kLine), "one|two|th\rree|");
  EXPECT_EQ(spelled(text, Documents::kBlank), "one\r\ntwo|th\rree|");
}

TEST_F(TokenizeFiles, GiveTheSameTokensIfDocumentsSpanTheBuffer) {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += "line " + std::to_string(i) + "\n";
  std::string want = text;
  std::replace(want.begin(), want.end(), '\n', '|');
  EXPECT_EQ(spelled(text, Documents::kLine), want);
  EXPECT_EQ(spelled(text, Documents::kFile), text + "|");
}

TEST_F(TokenizeFiles, TakeTheEndTokenInATextAsText) {
  EXPECT_EQ(tokens("a|", {.end_token = "|"}), (std::vector<std::int64_t>{'a', '|', 256}));
}

TEST_F(TokenizeFiles, NameADocumentThatIsTooLongAndWriteNoFile) {
  for (const Documents documents : {Documents::kFile, Documents::kLine, Documents::kBlank}) {
    expect_refused(
        [&] {
          tokens("abc\nabcdefghijk\n",
                 {.documents = documents, .end_token = "|", .max_document_bytes = 8});
        },
        Errc::kBadConfig, "is longer than the 8 bytes allowed; divide it");
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TokenizeFiles, LeaveOutAByteOrderMarkAndRefuseOtherKindsOfFiles) {
  for (const Documents documents : {Documents::kFile, Documents::kLine, Documents::kBlank})
    EXPECT_EQ(spelled("\xEF\xBB\xBFone", documents), "one|");
  EXPECT_EQ(report_.bytes, 3);
  EXPECT_EQ(spelled("\xEF\xBB\xBF", Documents::kFile), "");
  for (const std::string& text : {std::string("\xFF\xFEh\0i\0", 6), std::string("\x1F\x8B\b"),
                                  std::string("version https://git-lfs.github.com/spec/v1\n")}) {
    expect_refused([&] { spelled(text, Documents::kLine); }, Errc::kBadConfig, "a.txt is ");
    expect_refused([&] { check_text_file(dir_ / "a.txt"); }, Errc::kBadConfig, "a.txt is ");
  }
}

TEST_F(TokenizeFiles, DoubtTextInAnotherEncoding) {
  const auto doubt = [&](const std::string& text) {
    put(dir_ / "a.txt", text);
    return check_text_file(dir_ / "a.txt");
  };
  EXPECT_EQ(doubt("caf\xC3\xA9"), "");
  EXPECT_EQ(doubt(std::string((64 << 10) - 1, 'a') + "\xC3\xA9"), "");
  EXPECT_THAT(doubt("caf\xE9 au lait"), testing::HasSubstr("a.txt is not in UTF-8 from byte 3 on"));
  EXPECT_THAT(doubt(std::string("h\0i\0", 4)), testing::HasSubstr("a.txt has zero bytes"));
}

TEST_F(TokenizeFiles, RefuseAnUnknownEndToken) {
  expect_refused([&] { tokens("abc", {.end_token = "</s>"}); }, Errc::kInvalidArgument,
                 "no token </s>");
}

TEST_F(TokenizeFiles, AreRefusedWithAnotherTokenizer) {
  tokens("abc", {.end_token = "|"});
  expect_refused([&] { TokenFile::open(path_).expect(*byte_tokenizer({"x"})); }, Errc::kBadConfig,
                 "was made with another tokenizer");
}

}  // namespace
}  // namespace weft::data::text
