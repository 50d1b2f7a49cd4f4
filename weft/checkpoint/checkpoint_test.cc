#include "weft/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/testing/folders.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Checkpoint sample(std::int64_t step, std::int64_t size = 100) {
  const auto values = torch::arange(size).to(torch::kFloat) + static_cast<double>(step);
  return {step,
          {{"model", {{"fc.weight", values}}}, {"optimizer", {{"fc.weight.momentum", values * 2}}}},
          {{"epoch", "3"}, {"rng", "1 2\n\"3\""}}};
}

void expect_equal(const Checkpoint& got, const Checkpoint& want) {
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.state, want.state);
  ASSERT_EQ(got.parts.size(), want.parts.size());
  for (const auto& [part, tensors] : want.parts) {
    for (const auto& [name, tensor] : tensors)
      EXPECT_TRUE(torch::equal(got.parts.at(part).at(name), tensor)) << part << " " << name;
  }
}

std::string load_failure(const std::string& folder) {
  try {
    load(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Checkpoint, LoadsWhatWasSaved) {
  const TempDir dir;
  const std::string folder = save(dir / "ckpt", sample(42));
  EXPECT_EQ(folder, dir / "ckpt/step-00000042");
  EXPECT_THAT(names_in(folder),
              ElementsAre("manifest", "model.safetensors", "optimizer.safetensors", "state.json"));
  expect_equal(load(folder), sample(42));
  expect_equal(load(folder + "/"), sample(42));
  EXPECT_EQ(latest(dir / "ckpt").folder, folder);
}

// The format of weft 0.1: one file for each part and one checksum for each file.
TEST(Checkpoint, LoadsManifestVersion1) {
  const TempDir dir;
  const std::string folder = save(dir.path(), sample(42, 1'000'000)), path = folder + "/manifest";
  internal::Manifest manifest = internal::parse_manifest(read_file(path, 1 << 20), path);
  manifest.chunk_bytes = 0;
  for (auto& [name, sums] : manifest.files) {
    const std::string bytes = read_file(folder + "/" + name, std::size_t{16} << 20);
    sums.chunks = {crc32c(bytes.data(), bytes.size())};
  }
  write_file_atomic(path, internal::render_manifest(manifest));
  EXPECT_THAT(read_file(path, 1 << 20), HasSubstr("weft-checkpoint 1\ncrc32c "));
  expect_equal(load(folder), sample(42, 1'000'000));
  EXPECT_EQ(latest(dir.path()).folder, folder);
  flip(folder + "/model.safetensors", 3'000'000);
  EXPECT_THAT(load_failure(folder), HasSubstr("model.safetensors: its checksum"));
  EXPECT_FALSE(latest(dir.path()).folder);
}

TEST(Checkpoint, KeepsTheNewestCheckpointsAndRemovesLeftoversOfACrash) {
  const TempDir dir;
  for (const std::int64_t step : {1, 2, 3}) save(dir.path(), sample(step), {.keep = 2});
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000002", "step-00000003"));
  fs::create_directory(dir / ".tmp-step-00000009");
  fs::create_directory(dir / "notes");
  save(dir.path(), sample(4), {.keep = 0});
  EXPECT_THAT(names_in(dir.path()),
              ElementsAre("notes", "step-00000002", "step-00000003", "step-00000004"));
  // A run that resumed from an older checkpoint: the one just saved is kept although others have
  // higher step numbers.
  save(dir.path(), sample(1), {.keep = 1});
  EXPECT_THAT(names_in(dir.path()), ElementsAre("notes", "step-00000001"));
}

// A run has resumed from step 20, since step 30 is damaged.
TEST(Checkpoint, DamagedOnesDoNotCountAmongThoseToKeep) {
  const TempDir dir;
  for (const std::int64_t step : {20, 30}) save(dir.path(), sample(step));
  fs::remove(dir / "step-00000030/manifest");
  const Latest found = latest(dir.path());
  EXPECT_THAT(found.damaged_steps, ElementsAre(30));
  save(dir.path(), sample(21), {.keep = 2, .damaged = found.damaged_steps});
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000020", "step-00000021", "step-00000030"));
  save(dir.path(), sample(31), {.keep = 2, .damaged = found.damaged_steps});
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000021", "step-00000030", "step-00000031"));
  save(dir.path(), sample(32), {.keep = 2, .damaged = found.damaged_steps});
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000031", "step-00000032"));
}

TEST(Checkpoint, ReplacesACheckpointOfTheSameStep) {
  const TempDir dir;
  save(dir.path(), sample(7));
  Checkpoint other = sample(7);
  other.parts.erase("optimizer");
  other.state["epoch"] = "4";
  expect_equal(load(save(dir.path(), other)), other);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000007"));
}

TEST(Checkpoint, ReplacesWhateverHasItsName) {
  const TempDir dir;
  fs::create_directories(dir / "ckpt");
  const std::string target = dir / "ckpt/step-00000042";
  const std::function<void()> obstacles[] = {
      [&] { std::ofstream(target) << "a file"; },
      [&] { ASSERT_EQ(::mkfifo(target.c_str(), 0600), 0); },
      [&] { fs::create_symlink("/nowhere/at/all", target); },
      [&] { fs::create_directories(target + "/folder"); },
  };
  for (const auto& put : obstacles) {
    fs::remove_all(target);
    put();
    expect_equal(load(save(dir / "ckpt", sample(42))), sample(42));
    EXPECT_THAT(names_in(dir / "ckpt"), ElementsAre("step-00000042"));
  }
}

TEST(Checkpoint, NamesTheDamagedFile) {
  const TempDir dir;
  const std::string folder = save(dir.path(), sample(1));
  const std::string model = folder + "/model.safetensors";
  const auto size = static_cast<std::streamoff>(fs::file_size(model));
  for (const std::streamoff at : {std::streamoff{0}, size / 2, size - 1}) {
    flip(model, at);
    EXPECT_THAT(load_failure(folder), HasSubstr("model.safetensors: its checksum"));
    flip(model, at);
  }
  load(folder);
  fs::resize_file(model, static_cast<std::uintmax_t>(size - 1));
  EXPECT_THAT(load_failure(folder), HasSubstr("model.safetensors: has"));
  fs::remove(model);
  EXPECT_THAT(load_failure(folder), HasSubstr("model.safetensors: listed"));
}

TEST(Checkpoint, DetectsAnyFlippedOrMissingByteOfManifestAndState) {
  const TempDir dir;
  const std::string folder = save(dir.path(), sample(1));
  for (const char* name : {"/manifest", "/state.json"}) {
    const std::string path = folder + name, good = read_file(path, 1 << 20);
    for (std::size_t at = 0; at < good.size(); ++at) {
      flip(path, static_cast<std::streamoff>(at));
      EXPECT_THAT(load_failure(folder), HasSubstr(path));
      flip(path, static_cast<std::streamoff>(at));
    }
    for (std::size_t size = good.size(); size-- > 0;) {
      fs::resize_file(path, size);
      load_failure(folder);
    }
    std::ofstream(path, std::ios::binary) << good;
  }
  expect_equal(load(folder), sample(1));
}

TEST(Checkpoint, SkipsDamagedCheckpointsAndSaysWhy) {
  const TempDir dir;
  for (const std::int64_t step : {1, 2, 3}) save(dir.path(), sample(step));
  fs::remove(dir / "step-00000003/manifest");
  flip(dir / "step-00000002/optimizer.safetensors", 200);
  fs::create_directory(dir / ".tmp-step-00000004");
  const Latest found = latest(dir.path());
  EXPECT_EQ(found.folder, dir / "step-00000001");
  EXPECT_THAT(found.damaged, ElementsAre(HasSubstr("step-00000003/manifest: missing"),
                                         HasSubstr("step-00000002/optimizer.safetensors")));
  EXPECT_FALSE(latest(dir / "nowhere").folder);
}

TEST(Checkpoint, OfWhichAllAreDamagedIsNotToldAsNone) {
  const TempDir dir;
  std::vector<std::string> passed_over;
  const auto newest = [&] {
    return newest_complete(dir.path(), "there is none",
                           [&](const std::string& line) { passed_over.push_back(line); });
  };
  expect_refused(newest, Errc::kInvalidArgument, "there is none");
  for (const std::int64_t step : {1, 2}) save(dir.path(), sample(step));
  fs::remove(dir / "step-00000002/manifest");
  EXPECT_EQ(newest(), dir / "step-00000001");
  EXPECT_THAT(passed_over, ElementsAre(HasSubstr("step-00000002/manifest: missing")));
  fs::remove(dir / "step-00000001/state.json");
  expect_refused(newest, Errc::kCorrupt,
                 "all checkpoints in " + dir.path() + " are damaged (2); the newest: ");
}

// As another user's checkpoint is under a umask of 077. It is not damaged, and no older one may
// take its place.
TEST(Checkpoint, ThatMayNotBeReadIsNotPassedOverAsDamaged) {
  const TempDir dir;
  save(dir.path(), sample(1));
  const std::string folder = save(dir.path(), sample(2));
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0), 0);
  const uid_t self = ::geteuid();
  if (self == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  std::string said;
  Errc code = Errc::kInternal;
  try {
    const Latest found = latest(dir.path());
    said = "took " + found.folder.value_or("none");
  } catch (const Error& error) {
    code = error.code();
    said = error.message();
  }
  if (self == 0) {
    ASSERT_EQ(::seteuid(self), 0);
  }
  ::chmod(folder.c_str(), 0755);
  EXPECT_EQ(said, "cannot read " + folder + "/manifest: Permission denied");
  EXPECT_EQ(code, Errc::kInvalidArgument);
}

// A limit on file sizes stands in for a full disk: writes fail after the first bytes.
TEST(Checkpoint, KeepsTheOldCheckpointWhenTheDiskIsFull) {
  const TempDir dir;
  save(dir.path(), sample(1));
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit small{8192, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  Errc code{};
  try {
    save(dir.path(), sample(2, 100'000), {.keep = 1});
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    code = error.code();
    EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
  }
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(code, Errc::kUnavailable);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
  expect_equal(load(dir / "step-00000001"), sample(1));
}

TEST(Checkpoint, RefusesPathsAndNamesThatItCannotWrite) {
  const TempDir dir;
  std::ofstream(dir / "file") << "in the way";
  EXPECT_THROW(save(dir / "file/ckpt", sample(1)), Error);
  for (const char* part : {"", "../model", "a/b", ".hidden", "a.b", "a b"}) {
    EXPECT_THROW(save(dir.path(), {1, {{part, {}}}, {}}), Error) << part;
  }
  EXPECT_THROW(save(dir.path(), {-1, {}, {}}), Error);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("file"));
}

}  // namespace
}  // namespace weft::checkpoint
