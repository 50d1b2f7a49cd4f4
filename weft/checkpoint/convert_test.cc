#include "weft/checkpoint/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "weft/base/file.h"
#include "weft/base/testing/file_faults.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/checkpoint/testing/other_job.h"
#include "weft/comm/replicate.h"

namespace weft::checkpoint {
namespace {

std::string sharded(const std::string& dir, const std::vector<Named>& tensors) {
  replicate(3, [&](const Group& group) {
    save(dir, shards_of(1, tensors, flat_shards, group.rank(), 3), group);
  });
  return dir + "/step-00000001";
}

TEST(Convert, WritesThePartAsOnePlainSafetensorsFile) {
  const TempDir dir;
  const auto tensors = some_tensors(4);
  write_plain(Reader(sharded(dir.path(), tensors)), "model", dir / "model.safetensors");
  const auto file = load_safetensors(dir / "model.safetensors");
  EXPECT_EQ(file.metadata.at("format"), "pt");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const Named& one : tensors)
    EXPECT_TRUE(at::equal(file.tensors.at(one.name), one.tensor)) << one.name;
}

TEST(Convert, WritesFilesUpToTheGivenSizeAndAHubIndex) {
  const TempDir dir;
  const auto tensors = some_tensors(4);  // the embedding has 888 bytes, all others together 537
  const Reader reader(sharded(dir.path(), tensors));
  const auto names = write_hub(reader, "model", dir / "hub", 500);
  EXPECT_EQ(names.back(), "model.safetensors.index.json");
  const auto index =
      nlohmann::json::parse(read_file(dir / "hub/model.safetensors.index.json", 1 << 20));
  EXPECT_EQ(index["weight_map"].size(), tensors.size());
  std::vector<std::string> paths;
  for (std::size_t i = 0; i + 1 < names.size(); ++i) paths.push_back(dir / ("hub/" + names[i]));
  const Reader back = Reader::of_files(paths);
  for (const Named& one : tensors) {
    EXPECT_TRUE(at::equal(back.read("model", one.name), one.tensor)) << one.name;
    EXPECT_EQ(back.places("model", one.name)[0].file,
              dir / ("hub/" + index["weight_map"][one.name].get<std::string>()));
  }
  EXPECT_THAT(write_hub(reader, "model", dir / "one", 0),
              ::testing::ElementsAre("model.safetensors"));
}

// A reader of the hub's layout would take an older model.safetensors before the new index.
TEST(Convert, WritesNoFilesBesideThoseOfAnotherDivision) {
  const TempDir dir;
  const Reader reader(sharded(dir.path(), some_tensors(4)));
  const std::string one = dir / "one", several = dir / "several";
  write_hub(reader, "model", one, 0);
  for (const char* other : {"config.json", "optimizer.safetensors", "model-1.safetensors"})
    write_file_atomic(one + "/" + other, "another's");
  const auto before = names_in(one);
  write_hub(reader, "model", one, 0);
  expect_refused([&] { write_hub(reader, "model", one, 500); }, Errc::kInvalidArgument,
                 one + " has model.safetensors, which readers would take");
  EXPECT_EQ(names_in(one), before);
  write_hub(reader, "model", several, 500);
  write_hub(reader, "model", several, 500);
  expect_refused([&] { write_hub(reader, "model", several, 0); }, Errc::kInvalidArgument,
                 "remove it, or name another folder");
  EXPECT_FALSE(std::filesystem::exists(several + "/model.safetensors"));
}

TEST(Convert, CopiesAnOldCheckpointInTheNewestFormat) {
  const TempDir dir;
  const auto tensors = some_tensors(4);
  Checkpoint old{7, {}, {{"epoch", "2"}}};
  for (const Named& one : tensors) old.parts["model"][one.name] = one.tensor;
  const std::string folder = save(dir / "old", old), path = folder + "/manifest";
  internal::Manifest manifest = internal::parse_manifest(read_file(path, 1 << 20), path);
  manifest.chunk_bytes = 0;
  write_file_atomic(path, internal::render_manifest(manifest));
  const std::string copy = copy_checkpoint(folder, dir / "new");
  EXPECT_EQ(copy, dir / "new/step-00000007");
  EXPECT_EQ(
      internal::parse_manifest(read_file(copy + "/manifest", 1 << 20), "manifest").chunk_bytes,
      internal::kChunkBytes);
  const Checkpoint whole = load(copy);
  EXPECT_EQ(whole.state, old.state);
  for (const Named& one : tensors)
    EXPECT_TRUE(at::equal(whole.parts.at("model").at(one.name), one.tensor)) << one.name;
  expect_refused([&] { copy_checkpoint(folder, dir / "new"); }, Errc::kInvalidArgument,
                 "exists already");
  std::filesystem::create_directories(dir / "killed/.tmp-step-00000007");
  EXPECT_EQ(copy_checkpoint(folder, dir / "killed"), dir / "killed/step-00000007");
  flip(folder + "/model.safetensors", 900);
  expect_refused([&] { copy_checkpoint(folder, dir / "newer"); }, Errc::kCorrupt, "its checksum");
  EXPECT_FALSE(std::filesystem::exists(dir / "newer/step-00000007"));
}

Checkpoint whole_checkpoint(std::int64_t step) {
  Checkpoint checkpoint{step, {}, {}};
  for (const Named& one : some_tensors(step)) checkpoint.parts["model"][one.name] = one.tensor;
  return checkpoint;
}

TEST(Convert, CopiesNoCheckpointIntoAFolderWhileAJobSavesThere) {
  const TempDir dir;
  const std::string from = save(dir / "old", whole_checkpoint(7)), to = dir / "new";
  bool is_under_way = false;
  const FileFaults copy_during_save([&](FileCall call, const std::string& path) {
    if (call == FileCall::kWrite && path.ends_with("/manifest") &&
        !std::exchange(is_under_way, true)) {
      expect_refused([&] { copy_checkpoint(from, to); }, Errc::kUnavailable,
                     "another process is saving a checkpoint into " + to);
    }
    return 0;
  });
  verify(save(to, whole_checkpoint(8)));
  EXPECT_TRUE(is_under_way);
  verify(copy_checkpoint(from, to));  // the folder is free again
  EXPECT_THAT(names_in(to), ::testing::ElementsAre("step-00000007", "step-00000008"));
}

TEST(Convert, NoJobSavesIntoAFolderWhileACheckpointIsCopiedThere) {
  const TempDir dir;
  const std::string from = save(dir / "old", whole_checkpoint(7)), to = dir / "new";
  bool is_under_way = false;
  const FileFaults save_during_copy([&](FileCall call, const std::string& path) {
    if (call == FileCall::kWrite && path.ends_with("/manifest") &&
        !std::exchange(is_under_way, true)) {
      for (const std::int64_t step : {7, 8}) {
        expect_refused([&] { save(to, whole_checkpoint(step)); }, Errc::kUnavailable,
                       "another process is saving a checkpoint into " + to);
      }
    }
    return 0;
  });
  verify(copy_checkpoint(from, to));
  EXPECT_TRUE(is_under_way);
  EXPECT_THAT(names_in(to), ::testing::ElementsAre("step-00000007"));
}

// On a file system without locks, where a job has begun to save the same step meanwhile.
TEST(Convert, CopiesNoFilesThatAJobHasBegun) {
  const TempDir dir;
  const std::string from = save(dir / "old", whole_checkpoint(7)), to = dir / "new",
                    aside = to + "/.tmp-step-00000007";
  for (const Moment& moment : moments_of_a_save(aside)) {
    SCOPED_TRACE(moment.path);
    bool has_begun = false;
    const OtherJob other_job(moment, aside, "model.safetensors", has_begun);
    expect_refused([&] { copy_checkpoint(from, to); }, Errc::kUnavailable,
                   aside + " was removed or replaced during the save");
    EXPECT_THAT(names_in(to), ::testing::ElementsAre(".tmp-step-00000007"));
    EXPECT_TRUE(std::filesystem::exists(aside + "/model.safetensors"));  // still the other job's
  }
}

}  // namespace
}  // namespace weft::checkpoint
