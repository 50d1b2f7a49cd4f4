#include "weft/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string bytes_of(const std::string& path) { return read_file(path, 1 << 26); }

std::string write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string with_length(const std::string& json, std::uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + json;
}
std::string with_length(const std::string& json) { return with_length(json, json.size()); }

// The same tensors that safetensors_peer.py makes.
TensorFile every_kind() {
  TensorFile file;
  const std::pair<const char*, at::ScalarType> kinds[] = {
      {"f64", at::kDouble}, {"f32", at::kFloat}, {"f16", at::kHalf},  {"bf16", at::kBFloat16},
      {"i64", at::kLong},   {"i32", at::kInt},   {"i16", at::kShort}, {"i8", at::kChar},
      {"u8", at::kByte},    {"bool", at::kBool}};
  for (const auto& [name, type] : kinds) {
    file.tensors[name] =
        (type == at::kBool ? torch::arange(6) % 2 : torch::arange(6) * 3).to(type).reshape({2, 3});
  }
  file.tensors["scalar"] = torch::tensor(2.5f);
  file.tensors["empty"] = torch::empty({0, 4});
  file.tensors["naïve \"ключ\" \\"] = torch::ones({1});
  file.metadata = {{"format", "pt"}, {"line", "a\nb"}};
  return file;
}

void expect_equal(const TensorFile& got, const TensorFile& want) {
  EXPECT_EQ(got.metadata, want.metadata);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    ASSERT_TRUE(got.tensors.contains(name)) << name;
    EXPECT_EQ(got.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(got.tensors.at(name), tensor)) << name;
  }
}

std::string refusal(const std::string& path) {
  try {
    load_safetensors(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

class Safetensors : public ::testing::Test {
 protected:
  // Writes a file with this header and so many bytes of data, and returns why it is refused.
  std::string refused(const std::string& json, std::size_t data_bytes) const {
    return refusal(write(dir_ / "attack", with_length(json) + std::string(data_bytes, '\0')));
  }

  TempDir dir_;
};

TEST_F(Safetensors, RoundTripEveryKindOfTensorAndLeaveNoOtherFile) {
  const TensorFile file = every_kind();
  save_safetensors(dir_ / "a", file);
  save_safetensors(dir_ / "a", file);  // replaces the old file
  expect_equal(load_safetensors(dir_ / "a"), file);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(Safetensors, StoreStridedViewsAndParametersByTheirValues) {
  const at::Tensor matrix = torch::arange(12.f).reshape({3, 4}).requires_grad_();
  save_safetensors(dir_ / "a", {{{"t", matrix.t()}, {"column", matrix.select(1, 2)}}, {}});
  const TensorFile got = load_safetensors(dir_ / "a");
  EXPECT_TRUE(torch::equal(got.tensors.at("t"), matrix.detach().t()));
  EXPECT_TRUE(torch::equal(got.tensors.at("column"), torch::tensor({2.f, 6.f, 10.f})));
}

TEST_F(Safetensors, AlignTheHeaderAndEveryTensor) {
  save_safetensors(dir_ / "a", every_kind());
  const std::string bytes = bytes_of(dir_ / "a");
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(bytes.data()) % 8, 0u);
  EXPECT_LT(bytes.find("\"f64\""), bytes.find("\"bf16\""));
  EXPECT_LT(bytes.find("\"bf16\""), bytes.find("\"bool\""));
}

TEST_F(Safetensors, RefuseTensorsThatTheFormatCannotStore) {
  const auto save = [&](const std::string& name, const at::Tensor& tensor) {
    save_safetensors(dir_ / "a", {{{name, tensor}}, {}});
  };
  EXPECT_THROW(save("c", torch::zeros({2}, torch::kComplexFloat)), Error);
  EXPECT_THROW(save("none", at::Tensor()), Error);
  EXPECT_THROW(save("__metadata__", torch::zeros({2})), Error);
  EXPECT_THROW(save("\xff", torch::zeros({2})), Error);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(Safetensors, AreRefusedWhenTruncatedAnywhere) {
  save_safetensors(dir_ / "a", every_kind());
  const std::string good = bytes_of(dir_ / "a");
  EXPECT_THAT(refusal(write(dir_ / "cut", good + "x")), HasSubstr("belong to no tensor"));
  for (std::size_t size = good.size(); size-- > 0;) {
    std::filesystem::resize_file(dir_ / "cut", size);
    refusal(dir_ / "cut");
  }
}

// Each attack on its own. The message must give the right reason.
TEST_F(Safetensors, RefuseOverlapsHolesAndWrongOffsets) {
  const auto pair = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}";
  };
  load_safetensors(
      write(dir_ / "good", with_length(pair("[0,8]", "[8,16]")) + std::string(16, '\0')));
  EXPECT_THAT(refused(pair("[0,8]", "[4,12]"), 12), HasSubstr("starts at 4"));
  EXPECT_THAT(refused(pair("[0,8]", "[0,8]"), 8), HasSubstr("starts at 0"));
  EXPECT_THAT(refused(pair("[0,8]", "[12,20]"), 20), HasSubstr("starts at 12"));
  EXPECT_THAT(refused(pair("[0,8]", "[8,24]"), 24), HasSubstr("don't fit"));
  EXPECT_THAT(refused(pair("[0,8]", "[8,0]"), 16), HasSubstr("don't fit"));
  EXPECT_THAT(refused(pair("[0,8]", "[8,16]"), 12), HasSubstr("beyond the end"));
  EXPECT_THAT(refused(pair("[0,8]", "[8,16]"), 20), HasSubstr("belong to no tensor"));
  EXPECT_THAT(refused(pair("[-8,0]", "[0,8]"), 16), HasSubstr("from 0 to"));
}

TEST_F(Safetensors, RefuseHeadersLargerThanTheFile) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_THAT(refusal(write(dir_ / "huge", with_length("{}", length))),
                HasSubstr("gives the header"));
  }
}

TEST_F(Safetensors, NameOtherKindsOfFilesWithTheRemedy) {
  const auto refused_file = [&](const std::string& bytes) {
    return refusal(write(dir_ / "other", bytes));
  };
  EXPECT_THAT(refused_file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              HasSubstr("other is a Git LFS pointer, not the file itself; fetch"));
  EXPECT_THAT(refused_file("PK\x03\x04" + std::string(60, '\x01')), HasSubstr("PyTorch"));
  EXPECT_THAT(refused_file("<html>\n<body>Not found"),
              HasSubstr("is text, not a safetensors file; it begins with \"<html>\""));
  EXPECT_THAT(refused_file("gone"), HasSubstr("is text"));
  EXPECT_THAT(refused_file(std::string(80, '\xff')), HasSubstr("gives the header"));
  // A header of 640 bytes begins as a pickle does.
  load_safetensors(write(dir_ / "good", with_length("{}" + std::string(638, ' '))));
}

TEST_F(Safetensors, RefuseDuplicateAndUnknownKeys) {
  const std::string one = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refused("{" + one + "," + one + "}", 1), HasSubstr("twice"));
  EXPECT_THAT(
      refused(R"({"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)" + one + "}", 1),
      HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"code":"x"}})", 1),
              HasSubstr("unknown"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":1}})", 0), HasSubstr("expected a string"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("unknown dtype"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("lacks"));
}

TEST_F(Safetensors, RefuseTextThatIsNotUtf8OrNotJson) {
  for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(refused(std::string(R"({"__metadata__":{"k":")") + bad + "\"}}", 0),
                HasSubstr("UTF-8"));
  }
  for (const char* bad : {"", "[]", " {}", "{", "{}x", "{\"", "{\"a\"", "{\"a\":",
                          R"({"__metadata__":{"k":"\ud800"}})", R"({"__metadata__":{"k":"\q"}})"}) {
    refused(bad, 0);
  }
  EXPECT_TRUE(load_safetensors(write(dir_ / "good", with_length("{}   "))).tensors.empty());
}

TEST_F(Safetensors, RefuseShapesThatOverflow) {
  const auto shaped = [](const std::string& shape) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,0]}})";
  };
  EXPECT_THAT(refused(shaped("[4294967296,4294967296]"), 0), HasSubstr("2^63"));
  EXPECT_THAT(refused(shaped("[4611686018427387904]"), 0), HasSubstr("2^63"));
  EXPECT_THAT(refused(shaped("[0,4294967296,4294967296]"), 0), HasSubstr("2^63"));
  EXPECT_THAT(refused(shaped("[9223372036854775808]"), 0), HasSubstr("2^63 - 1"));
  EXPECT_THAT(refused(shaped("[1e3]"), 0), HasSubstr("expected"));
  std::string deep = "[1";
  for (int i = 0; i < 100; ++i) deep += ",1";
  EXPECT_THAT(refused(shaped(deep + "]"), 4), HasSubstr("more than 64"));
}

TEST_F(Safetensors, RefuseBooleansThatAreNeitherTrueNorFalse) {
  EXPECT_THAT(
      refusal(write(
          dir_ / "bool",
          with_length(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})") + "\x01\x02")),
      HasSubstr("neither 0 nor 1"));
}

// Nobody writes to the pipe, so that a read of it would wait for ever.
TEST_F(Safetensors, RefuseAPipeAtOnce) {
  const std::string pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("is not a regular file"));
}

TEST(SafetensorsSlow, SurviveTenThousandFlippedBits) {
  const TempDir dir;
  save_safetensors(dir / "a", every_kind());
  const std::string good = bytes_of(write(dir / "bad", bytes_of(dir / "a")));
  // Changes the file in place, which is ten times as fast as writing a new one.
  std::fstream file(dir / "bad", std::ios::in | std::ios::out | std::ios::binary);
  std::mt19937 random(11);
  int refused = 0;
  for (int trial = 0; trial < 10'000; ++trial) {
    std::string bad = good;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    file.seekp(0);
    file << bad << std::flush;
    try {
      // A file that is accepted must be valid: its values can be written and read again.
      const TensorFile got = load_safetensors(dir / "bad");
      if (trial % 200 == 0) {
        save_safetensors(dir / "again", got);
        ASSERT_EQ(load_safetensors(dir / "again").tensors.size(), got.tensors.size());
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Errc::kCorrupt) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 5'000);  // most of the file is header
}

TEST(TensorReader, ReadsTensorsAndPartsOfEveryDtype) {
  const TempDir dir;
  TensorFile file = every_kind();
  file.tensors["deep"] = torch::arange(2 * 3 * 4 * 5).reshape({2, 3, 4, 5});
  save_safetensors(dir / "file", file);
  const TensorReader reader(dir / "file");
  EXPECT_EQ(reader.metadata(), file.metadata);
  EXPECT_EQ(reader.sizes().size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(reader.sizes().at(name), tensor.sizes().vec()) << name;
    EXPECT_TRUE(torch::equal(reader.read(name), tensor)) << name;
    EXPECT_EQ(reader.read(name).scalar_type(), tensor.scalar_type()) << name;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      for (std::int64_t begin = 0; begin <= tensor.size(dim); ++begin) {
        for (std::int64_t count = 0; count <= tensor.size(dim) - begin; ++count) {
          EXPECT_TRUE(
              torch::equal(reader.read(name, dim, begin, count), tensor.narrow(dim, begin, count)))
              << name << " " << dim << " " << begin;
        }
      }
    }
  }
}

TEST(TensorReader, RefusesNamesAndEntriesThatTheFileDoesNotHave) {
  const TempDir dir;
  save_safetensors(dir / "file", every_kind());
  const TensorReader reader(dir / "file");
  const auto refusal_of = [&](const std::string& name, std::int64_t dim, std::int64_t begin,
                              std::int64_t count) -> std::string {
    try {
      reader.read(name, dim, begin, count);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal_of("f65", 0, 0, 1), HasSubstr("no tensor \"f65\""));
  for (const auto& [dim, begin, count] : {std::array<std::int64_t, 3>{2, 0, 1},
                                          {-1, 0, 1},
                                          {1, -1, 1},
                                          {1, 0, 4},
                                          {1, 3, 1},
                                          {1, 1, -1},
                                          {1, std::numeric_limits<std::int64_t>::max(), 1}}) {
    EXPECT_THAT(refusal_of("f32", dim, begin, count), HasSubstr("has no entries"))
        << dim << " " << begin << " " << count;
  }
}

TEST(SafetensorsPeerSlow, ExchangeFilesWithThePythonPackage) {
  const TempDir dir;
  const std::filesystem::path here = WEFT_SOURCES;
  const auto venv = here.parent_path().parent_path() / ".venv/bin/python";
  const std::string python = std::filesystem::exists(venv) ? venv.string() : "python3";
  save_safetensors(dir / "ours", every_kind());
  const std::string command = "'" + python + "' '" + (here / "safetensors_peer.py").string() +
                              "' '" + (dir / "ours") + "' '" + (dir / "theirs") + "'";
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "the Python package safetensors or torch is not installed";
  ASSERT_EQ(status, 0);
  expect_equal(load_safetensors(dir / "theirs"), every_kind());
}

}  // namespace
}  // namespace weft::checkpoint
