#include "weft/data/internal/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"

namespace weft::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Idx : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return dir_ / name;
  }

  TempDir dir_;
};

std::string be32(std::uint32_t v) { return {char(v >> 24), char(v >> 16), char(v >> 8), char(v)}; }

std::string idx(const std::vector<std::uint32_t>& shape, const std::string& values) {
  std::string file = be32(0x0800 + static_cast<std::uint32_t>(shape.size()));
  for (const auto size : shape) file += be32(size);
  return file + values;
}

std::string gzip(const std::string& content) {
  z_stream zip{};
  EXPECT_EQ(deflateInit2(&zip, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&zip, content.size()) + 64, '\0');
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  zip.avail_in = static_cast<uInt>(content.size());
  zip.next_out = reinterpret_cast<Bytef*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&zip, Z_FINISH), Z_STREAM_END);
  out.resize(zip.total_out);
  deflateEnd(&zip);
  return out;
}

// `where`: what the message must contain beside the path.
std::string refusal(const std::string& path, IdxLimits limits = {},
                    const std::string& where = "offset") {
  try {
    read_idx(path, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr(where)));
    return error.what();
  }
  ADD_FAILURE() << path << " was accepted";
  return "";
}

TEST_F(Idx, ReadsPlainAndGzipAlike) {
  std::string values(2 * 3 * 4, '\0');
  std::iota(values.begin(), values.end(), char(100));
  for (const auto& path :
       {write("a", idx({2, 3, 4}, values)), write("a.gz", gzip(idx({2, 3, 4}, values)))}) {
    const IdxArray array = read_idx(path);
    EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3, 4}));
    EXPECT_EQ(std::string(array.values.begin(), array.values.end()), values);
  }
}

TEST_F(Idx, RefusesEveryTruncation) {
  const std::string plain = idx({5, 4}, std::string(20, 'x'));
  const std::string zipped = gzip(plain);
  for (std::size_t cut = 0; cut < plain.size(); ++cut) refusal(write("cut", plain.substr(0, cut)));
  for (std::size_t cut = 0; cut < zipped.size(); ++cut)
    refusal(write("cut.gz", zipped.substr(0, cut)));
}

TEST_F(Idx, RefusesBytesAfterTheEnd) {
  const std::string plain = idx({4}, "abcd");
  EXPECT_THAT(refusal(write("long", plain + "e")), HasSubstr("has bytes after"));
  EXPECT_THAT(refusal(write("long.gz", gzip(plain + "e"))), HasSubstr("has bytes after the data"));
  EXPECT_THAT(refusal(write("tail.gz", gzip(plain) + "garbage")),
              HasSubstr("has bytes after the end of the gzip"));
}

TEST_F(Idx, RefusesAWrongMagicNumber) {
  EXPECT_THAT(refusal(write("floats", be32(0x0d01) + be32(1) + "abcd")), HasSubstr("magic"));
  EXPECT_THAT(refusal(write("flat", be32(0x0800) + "a")), HasSubstr("magic"));
  EXPECT_THAT(refusal(write("page", "<html><body>404</body></html>")),
              HasSubstr("neither gzip nor IDX"));
  refusal(write("pointer", "version https://git-lfs.github.com/spec/v1\noid 1\n"), {},
          "pointer is a Git LFS pointer");
  EXPECT_THAT(refusal(write("page.gz", "<html><body>404</body></html>")),
              HasSubstr("not a gzip file"));
}

TEST_F(Idx, RefusesSizesBeyondTheFileBeforeItAllocates) {
  EXPECT_THAT(refusal(write("claim.gz", gzip(idx({1000, 1000}, "abc")))),
              HasSubstr("more than a file of this length can hold"));
  EXPECT_THAT(refusal(write("claim", idx({1000, 1000}, "abc"))),
              HasSubstr("more than a file of this length can hold"));
  EXPECT_THAT(refusal(write("huge", idx({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, "abc"))),
              HasSubstr("limit"));
}

TEST_F(Idx, RefusesADecompressionBomb) {
  const std::string bomb = gzip(idx({1 << 22}, std::string(1 << 22, '\0')));
  ASSERT_LT(bomb.size(), 8192u);
  EXPECT_THAT(refusal(write("bomb.gz", bomb), {.max_bytes = 1 << 20}), HasSubstr("limit"));
  // The header gives a small size, but the stream is large. No more than this size is inflated.
  EXPECT_THAT(refusal(write("more.gz", gzip(idx({16}, std::string(1 << 22, '\0'))))),
              HasSubstr("has bytes after the data"));
}

TEST_F(Idx, DetectsEveryFlippedBitThatChangesTheContentOfAGzipFile) {
  std::string values(512, '\0');
  std::iota(values.begin(), values.end(), char(0));
  const std::string good = gzip(idx({512}, values));
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::string bad = good;
    const std::size_t bit = random() % (bad.size() * 8);
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const std::string path = write("bad.gz", bad);
    try {
      const IdxArray array = read_idx(path);
      EXPECT_EQ(std::string(array.values.begin(), array.values.end()), values)
          << "bit " << bit;  // The bit is in gzip's name or time field.
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt);
    }
  }
}

TEST_F(Idx, TellsWhatToInstallIfTheFolderIsMissing) {
  try {
    load_fashion_mnist(dir_ / "nowhere", Part::kTrain);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("dataset-fashion-mnist"), HasSubstr("data.dir="),
                                    HasSubstr("data.name=shapes")));
  }
}

// Nobody writes to the pipe, so that a read of it would wait for ever.
TEST_F(Idx, RefusesAPipeAndAFolderAtOnce) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {dir_ / "pipe", dir_.path()})
    expect_refused([&] { read_idx(path); }, Errc::kBadConfig, path + " is not a file");
}

TEST_F(Idx, RefusesImagesAndLabelsThatDoNotMatch) {
  write("t10k-images-idx3-ubyte", idx({2, 1, 1}, "ab"));
  const auto load = [&](const std::string& labels) {
    write("t10k-labels-idx1-ubyte", labels);
    return load_fashion_mnist(dir_.path(), Part::kTest);
  };
  EXPECT_EQ(load(idx({2}, std::string("\x01\x09", 2))).labels, (std::vector<std::uint8_t>{1, 9}));
  EXPECT_THROW(load(idx({3}, std::string(3, '\x01'))), Error);
  EXPECT_THROW(load(idx({2}, std::string("\x01\x0a", 2))), Error);
  EXPECT_THROW(load(idx({2, 1}, std::string(2, '\x01'))), Error);
}

// Values of the published files (https://github.com/zalandoresearch/fashion-mnist): 6,000 and 1,000
// images per class, and the mean 0.2860 and standard deviation 0.3530 that PyTorch users normalize
// with.
TEST_F(Idx, LoadsFashionMnistAsPublished) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  for (const Part part : {Part::kTrain, Part::kTest}) {
    const ImageSet set = load_fashion_mnist("", part);
    const std::int64_t each = part == Part::kTrain ? 6000 : 1000;
    ASSERT_EQ(set.size(), 10 * each);
    EXPECT_EQ(set.image_bytes(), 28 * 28);
    for (int label = 0; label < 10; ++label)
      EXPECT_EQ(std::count(set.labels.begin(), set.labels.end(), label), each);
    if (part == Part::kTrain) {
      const ChannelStats stats = channel_stats(set);
      EXPECT_NEAR(stats.mean.at(0), 0.2860, 1e-4);
      EXPECT_NEAR(stats.std.at(0), 0.3530, 1e-4);
    }
  }
}

TEST(ChannelStats, AreExactForAChannelOfOneValue) {
  for (int value = 0; value < 256; ++value) {
    ImageSet set;
    set.channels = 2, set.height = 1, set.width = 3;
    set.pixels = std::vector<std::uint8_t>(6, static_cast<std::uint8_t>(value));
    set.pixels[5] ^= 1;
    set.labels = {0};
    const ChannelStats stats = channel_stats(set);
    EXPECT_EQ(stats.std.at(0), 0);
    EXPECT_GT(stats.std.at(1), 0);
  }
}

}  // namespace
}  // namespace weft::data
