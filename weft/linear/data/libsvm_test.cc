#include "weft/linear/data/libsvm.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"
#include "weft/linear/data/internal/libsvm_parser.h"
#include "weft/linear/data/power_law.h"
#include "weft/linear/data/text_file.h"

namespace weft::linear {
namespace libsvm_test {

// "label index:value …" with a slash after each row; columns as indices from 1.
std::string text_of(const SparseRows& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += std::to_string(static_cast<int>(rows.labels[i]));
    for (const Entry& entry : rows.row(i)) {
      text += entry.column == kBiasColumn ? " bias" : " " + std::to_string(entry.column + 1);
      text += ":" + std::to_string(entry.value).substr(0, 4);
    }
    text += "/";
  }
  return text;
}

SparseRows parse(std::string_view text, const LibsvmOptions& options = {},
                 std::size_t piece = std::string_view::npos) {
  SparseRows rows;
  internal::LibsvmParser parser("data", options, {}, rows);
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    parser.feed(text.substr(0, piece));
  parser.finish();
  return rows;
}

std::string error_of(std::string_view text, const LibsvmOptions& options = {}) {
  const std::string message = refusal([&] { parse(text, options); }, Errc::kCorrupt);
  // The position does not depend on the pieces.
  for (const std::size_t piece : {1, 3, 700}) {
    EXPECT_EQ(refusal([&] { parse(text, options, piece); }, Errc::kCorrupt), message);
  }
  return message;
}

std::string gzip(const std::string& text) {
  z_stream zip{};
  EXPECT_EQ(deflateInit2(&zip, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zip.avail_in = static_cast<uInt>(text.size());
  zip.next_out = reinterpret_cast<Bytef*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&zip, Z_FINISH), Z_STREAM_END);
  out.resize(zip.total_out);
  deflateEnd(&zip);
  return out;
}

TEST(Libsvm, ReadsLabelsIndicesAndValues) {
  EXPECT_EQ(text_of(parse("+1 1:0.5 3:-2\n-1 2:1e-1\n")), "1 1:0.50 3:-2.0/-1 2:0.10/");
  const auto rows = parse("2.5 7:+3.25\n");
  EXPECT_EQ(rows.labels, std::vector<double>{2.5});
  EXPECT_EQ(rows.row(0)[0].column, 6U);
  EXPECT_EQ(rows.row(0)[0].value, 3.25F);
}

TEST(Libsvm, AcceptsCrlfTabsCommentsEmptyLinesRowsWithoutEntriesAndAMissingNewline) {
  EXPECT_EQ(text_of(parse("1 1:1\r\n\r\n# all\n\t2\t 3:4 # 5:6\n3#x\n \n4 2:1")),
            "1 1:1.00/2 3:4.00/3/4 2:1.00/");
  EXPECT_EQ(parse("").size(), 0U);
  EXPECT_EQ(parse("\n\n#\n").size(), 0U);
}

TEST(Libsvm, ReadsTheSameRowsWhateverThePiecesAre) {
  const auto made = generate({.rows = 40, .columns = 300, .row_entries = 30}, 0, 40);
  const TempDir folder;
  write_libsvm(made, folder / "data");
  const std::string text = read_file(folder / "data", 1 << 20) + "1 5:0.5 # end";
  const auto expected = text_of(parse(text));
  EXPECT_EQ(expected.substr(0, text_of(made).size()), text_of(made));
  for (const std::size_t piece : {1, 2, 7, 64, 1025, 4096})
    EXPECT_EQ(text_of(parse(text, {}, piece)), expected) << piece;
}

TEST(Libsvm, WritesValuesThatReadBackAsTheSameBits) {
  const auto made = generate({.rows = 100, .columns = 500, .row_entries = 20}, 0, 100);
  const TempDir folder;
  write_libsvm(made, folder / "data");
  const auto read = read_libsvm(folder / "data");
  EXPECT_EQ(read.labels, made.labels);
  ASSERT_EQ(read.begins, made.begins);
  for (std::size_t i = 0; i < made.entries.size(); ++i) {
    EXPECT_EQ(read.entries[i].column, made.entries[i].column);
    EXPECT_EQ(read.entries[i].value, made.entries[i].value);
  }
}

TEST(Libsvm, RowsThatWereReadWithABiasAreWrittenWithoutIt) {
  const TempDir folder;
  std::ofstream(folder / "data") << "1 1:0.5 3:2\n-1\n";
  const auto rows = read_libsvm(folder / "data", {.bias = 1});
  write_libsvm(rows, folder / "again");
  EXPECT_EQ(read_file(folder / "again", 100), "1 1:0.5 3:2\n-1\n");
  EXPECT_EQ(text_of(read_libsvm(folder / "again", {.bias = 1})), text_of(rows));
}

TEST(Libsvm, DoesNotStoreZerosAndNumbersTooSmallForFloat32) {
  EXPECT_EQ(text_of(parse("1 1:0 2:-0.0 3:1e-60 4:1e-400 5:1\n")), "1 5:1.00/");
  EXPECT_EQ(error_of("1 2:0 2:1\n"), "Corrupt: data:1:7: index 2 is twice in this row");
}

TEST(ParseNumber, TellsTooSmallFromTooLargeByDigitsAndExponentTogether) {
  const std::string zeros(400, '0'), nines(400, '9');
  for (const std::string& small : std::vector<std::string>{
           "1e-400", "-1.5e-400", "0." + zeros + "1", "0." + zeros + "1e5", "." + zeros + "1e+5",
           "123e-99999999999999999999", "-0." + zeros + "25e-7", "1e-0400", nines + "e-900"}) {
    EXPECT_EQ(parse_number(small), 0.0) << small;
  }
  for (const std::string& large : std::vector<std::string>{
           "1e400", "1" + zeros, "1" + zeros + "e-1", "-1" + zeros + ".5e-1", "0.001e400",
           "1e99999999999999999999", "0." + zeros + "1e900", nines + "E-5"}) {
    EXPECT_EQ(parse_number(large), std::nullopt) << large;
  }
  EXPECT_EQ(parse_number("1" + zeros + "e-399"), 10.0);
  EXPECT_EQ(parse_number("0." + zeros + "1e402"), 10.0);
}

TEST(Libsvm, AppendsTheBiasToEachRow) {
  EXPECT_EQ(text_of(parse("1 1:1\n2\n", {.bias = 2})), "1 1:1.00 bias:2.00/2 bias:2.00/");
}

TEST(Libsvm, CountsIndicesFromZeroOnRequestOnly) {
  EXPECT_EQ(text_of(parse("1 0:1 5:2\n", {.zero_based = true})), "1 1:1.00 6:2.00/");
  EXPECT_EQ(error_of("1 2:1\n1 0:1\n"),
            "Corrupt: data:2:3: index 0: indices count from 1; if this file counts from 0, use "
            "zero_based");
}

TEST(Libsvm, NamesLineColumnAndReasonOfEachMistake) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1 1:1\n1 5:1 3:1\n", "data:2:7: index 3 follows index 5; indices must ascend"},
      {"1 4:1 4:2", "data:1:7: index 4 is twice in this row"},
      {"1 -3:1", "data:1:3: index -3 is negative"},
      {"1 4294967295:1", "data:1:3: index 4294967295 is above the limit of 100000000 (max_index)"},
      {"1 99999999999999999999999:1", "data:1:3: index with more than 19 digits is above"},
      {"1 1.5:1", "data:1:3: index \"1.5\" is not a whole number"},
      {"1 :1", "data:1:3: index \"\" is not a whole number"},
      {"1 +1:1", "data:1:3: index \"+1\" is not a whole number"},
      {"1 1:", "data:1:3: value \"\" is not a finite number"},
      {"1 1:nan", "data:1:3: value \"nan\" is not a finite number"},
      {"1 1:-inf", "data:1:3: value \"-inf\" is not a finite number"},
      {"1 1:1e999", "data:1:3: value \"1e999\" is not a finite number"},
      {"1 1:1e39", "data:1:3: value 1e+39 does not fit into float32"},
      {"1 1:+-2", "data:1:3: value \"+-2\" is not a finite number"},
      {"+-1 1:2", "data:1:1: label \"+-1\" is not a finite number"},
      {"1 1:2:3", "data:1:3: value \"2:3\" is not a finite number"},
      {"1 1:0x10", "data:1:3: value \"0x10\" is not a finite number"},
      {"1 7", "data:1:3: expected index:value, got \"7\""},
      {"\n\nnan 1:1", "data:3:1: label \"nan\" is not a finite number"},
      {"1 1:1\n  inf", "data:2:3: label \"inf\" is not a finite number"},
      {"1:1 2:2", "data:1:1: label \"1:1\" is not a finite number"},
      {"1,2 1:1", "rows with several labels are not supported"},
      {"1 qid:3 1:1", "data:1:3: qid: is not supported"},
      {std::string("1 1:\0", 5), "data:1:3: value \"\\x00\" is not a finite number"},
      {"\xef\xbb\xbf"
       "1 1:1",
       "data:1:1: label \"\\xef\\xbb\\xbf1\" is not a finite number"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_THAT(error_of(text), testing::HasSubstr(message));
}

TEST(Libsvm, NamesThePlaceOfAMistakeInALongRow) {
  std::string row = "1";
  for (int i = 1; i <= 2000; ++i) row += " " + std::to_string(i) + ":0.25";
  const std::string text = row + "\n" + row + " 9:1" + row + "\n";
  EXPECT_EQ(error_of(text), "Corrupt: data:2:" + std::to_string(row.size() + 2) +
                                ": index 9 follows index 2000; indices must ascend");
}

TEST(Libsvm, RefusesALongWordAfterItsFirst512Bytes) {
  EXPECT_THAT(error_of("1 " + std::string(513, '1') + ":1"),
              testing::HasSubstr("data:1:3: a word of more than 512 bytes"));
  EXPECT_THAT(error_of("1 1:" + std::string(600, '1')), testing::HasSubstr("512 bytes"));
  // The rest of an endless word is not kept.
  SparseRows rows;
  internal::LibsvmParser parser("data", {}, {}, rows);
  parser.feed("1 ");
  expect_refused(
      [&] {
        for (int i = 0; i < 1000; ++i) parser.feed(std::string(100, '7'));
      },
      Errc::kCorrupt, "data:1:3: a word of more than 512 bytes");
}

TEST(Libsvm, TakesMemoryForTheDataThatIsReadAndNotForTheLineOrTheIndex) {
  // A line of 32 MiB: a comment. The rows stay empty.
  SparseRows rows;
  internal::LibsvmParser parser("data", {}, {}, rows);
  parser.feed("1 99999999:1 # ");
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 32; ++i) parser.feed(piece);
  parser.finish();
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_LT(rows.bytes(), 1000U);
}

TEST(Libsvm, RowsBehindALineOf2GiBAreRead) {
  SparseRows rows;
  internal::LibsvmParser parser("data", {}, {}, rows);
  const std::string comment(1 << 20, 'x');
  parser.feed("1 3:1 # ");
  for (int i = 0; i < 2049; ++i) parser.feed(comment);
  parser.feed("\n-1 2:1\n");
  EXPECT_EQ(text_of(rows), "1 3:1.00/-1 2:1.00/");
  EXPECT_LT(rows.bytes(), 1000U);
}

TEST(LibsvmSlow, AnErrorBehind2GiBOfALineNamesItsColumn) {
  constexpr std::uint64_t kPieces = 2049, kPiece = 1 << 20;
  SparseRows rows;
  internal::LibsvmParser parser("data", {}, {}, rows);
  const std::string blanks(kPiece, ' ');
  parser.feed("1 ");
  for (std::uint64_t i = 0; i < kPieces; ++i) parser.feed(blanks);
  expect_refused([&] { parser.feed("7:x 8:1\n"); }, Errc::kCorrupt,
                 "data:1:" + std::to_string(3 + kPieces * kPiece) + ": value \"x\"");
}

TEST(Libsvm, RefusesRowsBeyondTheMemoryLimit) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "1 1:1 2:1 3:1\n";
  expect_refused([&] { parse(text, {.max_bytes = 50'000}); }, Errc::kUnavailable,
                 "of memory, and the limit is 48.8 KiB");
  EXPECT_EQ(parse(text, {.max_bytes = 1 << 20}).size(), 5000U);
}

class LibsvmFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = folder_ / ("file" + std::to_string(++files_));
    std::ofstream(path) << text;
    return path;
  }
  // The rows of all ranks, one after the other.
  std::string all_parts(const std::string& path, int world) {
    std::string text;
    for (int rank = 0; rank < world; ++rank)
      text += text_of(read_libsvm(path, {.rank = rank, .world = world}));
    return text;
  }

  TempDir folder_;
  int files_ = 0;
};

TEST_F(LibsvmFile, EachLineBelongsToOneRankWhateverTheirNumberAndTheLengthsOfLinesAre) {
  Random random(3);
  for (int trial = 0; trial < 20; ++trial) {
    std::string text;
    for (int i = 0; i < 30; ++i) {
      text += std::to_string(i);
      for (std::uint64_t k = random.below(40), index = 1; k > 0; --k, ++index)
        text += " " + std::to_string(index) + ":1";
      text += random.below(4) == 0 ? " # comment\r\n" : "\n";
    }
    if (trial % 2 == 1) text.pop_back();
    const std::string path = write(text);
    const std::string expected = text_of(parse(text));
    for (const int world : {1, 2, 3, 7, 64}) EXPECT_EQ(all_parts(path, world), expected) << world;
  }
}

TEST_F(LibsvmFile, ALineLongerThanTheSharesBelongsToTheRankOfItsFirstByte) {
  const std::string path = write("1 1:1\n2 2:2 # " + std::string(10'000, 'x') + "\n3 3:3\n");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 0, .world = 4})), "1 1:1.00/2 2:2.00/");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 1, .world = 4})), "");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 3, .world = 4})), "3 3:3.00/");
}

class LibsvmFileSlow : public LibsvmFile {};

// A file of 2 GiB that takes no space on the disk: its comment is a hole.
TEST_F(LibsvmFileSlow, ALineOf2GiBIsOneRankAndItsNeighborsHaveTheirRows) {
  const std::string path = write("1 1:1\n2 2:2 #");
  std::filesystem::resize_file(path, std::uint64_t{2049} << 20);
  std::ofstream(path, std::ios::app) << "\n3 3:3\n";
  EXPECT_EQ(text_of(read_libsvm(path)), "1 1:1.00/2 2:2.00/3 3:3.00/");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 0, .world = 3})), "1 1:1.00/2 2:2.00/");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 1, .world = 3})), "");
  EXPECT_EQ(text_of(read_libsvm(path, {.rank = 2, .world = 3})), "3 3:3.00/");
}

TEST_F(LibsvmFile, AnErrorNamesTheLineOfTheFileAndNotOfTheShare) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "1 1:1 2:2\n";
  const std::string path = write(text + "1 3:x\n" + text);
  expect_refused([&] { read_libsvm(path, {.rank = 2, .world = 5}); }, Errc::kCorrupt,
                 path + ":101:3: value \"x\"");
}

TEST_F(LibsvmFile, GzipFilesReadAsTheirContentAlsoInSeveralMembers) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += std::to_string(i) + " 1:1 2:0.5\n";
  const std::string path = write(gzip(text.substr(0, 3001)) + gzip(text.substr(3001)));
  EXPECT_EQ(text_of(read_libsvm(path)), text_of(parse(text)));
  std::size_t rows = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = read_libsvm(path, {.rank = rank, .world = 3});
    EXPECT_EQ(part.labels[0], 64 * rank);
    rows += part.size();
  }
  EXPECT_EQ(rows, 500U);
}

TEST_F(LibsvmFile, AByteOrderMarkIsLeftOutByAnyNumberOfRanks) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::string text : {"1 1:1\n2 2:2\n3 3:3\n", "\n1 1:1\n", "1 1:1", ""}) {
    const std::string expected = text_of(parse(text));
    for (const int world : {1, 2, 5, 30})
      EXPECT_EQ(all_parts(write(mark + text), world), expected) << text << world;
    EXPECT_EQ(text_of(read_libsvm(write(gzip(mark + text)))), expected) << text;
  }
  const std::string path = write(mark + "1 1:x\n");
  expect_refused([&] { read_libsvm(path); }, Errc::kCorrupt, path + ":1:3: value \"x\"");
}

TEST_F(LibsvmFile, OtherKindsOfFilesAreNamed) {
  for (const std::string& text :
       {std::string("\xFF\xFE"
                    "1\0",
                    4),
        std::string("PK\x03\x04"), std::string("version https://git-lfs.github.com/spec/v1\n")}) {
    const std::string path = write(text);
    expect_refused([&] { read_libsvm(path); }, Errc::kCorrupt, path + " is ");
  }
}

TEST_F(LibsvmFile, DamagedOrTruncatedGzipDataIsRefused) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += std::to_string(i * i) + " 1:1 2:0.5\n";
  const std::string whole = gzip(text);
  expect_refused([&] { read_libsvm(write(whole.substr(0, whole.size() / 2))); }, Errc::kCorrupt,
                 "truncated: the gzip data has no end");
  expect_refused([&] { read_libsvm(write(whole.substr(0, whole.size() - 3))); }, Errc::kCorrupt,
                 "truncated");
  std::string damaged = whole;
  damaged[whole.size() - 6] = static_cast<char>(damaged[whole.size() - 6] ^ 1);
  expect_refused([&] { read_libsvm(write(damaged)); }, Errc::kCorrupt, "damaged gzip data");
  expect_refused([&] { read_libsvm(write(whole + "tail")); }, Errc::kCorrupt, "damaged gzip data");
}

TEST_F(LibsvmFile, WrongPathsAndOptionsAreRefused) {
  expect_refused([&] { read_libsvm(folder_ / "none"); }, Errc::kInvalidArgument, "cannot open");
  expect_refused([&] { read_libsvm(folder_.path()); }, Errc::kInvalidArgument, "is a folder");
  const std::string path = write("1 1:1\n");
  expect_refused([&] { read_libsvm(path, {.rank = 2, .world = 2}); }, Errc::kInvalidArgument,
                 "rank 2 is not one of 2 ranks");
  expect_refused([&] { read_libsvm(path, {.max_index = kBiasColumn}); }, Errc::kInvalidArgument,
                 "max_index");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string pipe = "/proc/self/fd/" + std::to_string(ends[0]);
  ASSERT_EQ(::write(ends[1], "1 1:1\n", 6), 6);
  expect_refused([&] { read_libsvm(pipe, {.rank = 0, .world = 2}); }, Errc::kInvalidArgument,
                 "2 ranks cannot divide it");
  ASSERT_EQ(::write(ends[1], "2 1:1\n", 6), 6);
  ::close(ends[1]);
  EXPECT_EQ(text_of(read_libsvm(pipe)), "1 1:1.00/2 1:1.00/");
  ::close(ends[0]);
}

TEST_F(LibsvmFile, EmptyFilesHaveNoRows) {
  const std::string path = write("");
  EXPECT_EQ(read_libsvm(path).size(), 0U);
  EXPECT_EQ(read_libsvm(path, {.rank = 1, .world = 3}).size(), 0U);
}

}  // namespace libsvm_test
}  // namespace weft::linear
