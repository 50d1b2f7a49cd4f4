#include "weft/checkpoint/sharded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/testing/file_faults.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/index.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/checkpoint/testing/other_job.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string save_over(int ranks, const std::string& dir, std::int64_t step,
                      const std::vector<Named>& tensors, Shard shard) {
  std::string folder;
  replicate(ranks, [&](const Group& group) {
    const auto saved = save(dir, shards_of(step, tensors, shard, group.rank(), ranks), group);
    if (group.rank() == 0) folder = saved;
  });
  return folder;
}

void expect_whole(const std::string& folder, const std::vector<Named>& tensors) {
  const Checkpoint whole = load(folder);
  ASSERT_EQ(whole.parts.at("model").size(), tensors.size());
  for (const Named& one : tensors)
    EXPECT_TRUE(at::equal(whole.parts.at("model").at(one.name), one.tensor)) << one.name;
}

// Each of `ranks` ranks reads its own slices, with any memory layout, in the checkpoint's dtypes.
void expect_slices(const std::string& folder, const std::vector<Named>& tensors, Shard shard,
                   int ranks) {
  const Reader reader(folder);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Named> empty;
    for (const Named& one : tensors) empty.push_back({one.name, at::zeros_like(one.tensor)});
    const Slices wanted = shard(tensors, rank, ranks), mine = shard(empty, rank, ranks);
    reader.fill("model", mine);
    for (std::size_t i = 0; i < mine.size(); ++i)
      EXPECT_TRUE(at::equal(mine[i].tensor, wanted[i].tensor)) << mine[i].name;
  }
}

TEST(SlicesOfRange, CoverTheRangeOnceForAnyShape) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{}, {1}, {9}, {4, 5}, {3, 1, 4}, {2, 3, 2, 3}}) {
    const std::int64_t all = c10::multiply_integers(sizes);
    for (std::int64_t begin = 0; begin <= all; ++begin) {
      for (std::int64_t end = begin; end <= all; ++end) {
        at::Tensor got = at::full(sizes, -1, at::kLong);
        const at::Tensor flat = at::arange(begin, end, at::kLong);
        const Rectangle whole{"t", sizes, std::vector<std::int64_t>(sizes.size(), 0), sizes};
        for (const Slice& slice : slices_of_range(whole, begin, flat)) {
          EXPECT_TRUE(slice.tensor.is_contiguous());
          at::Tensor to = got;
          for (std::size_t d = 0; d < sizes.size(); ++d) {
            to = to.narrow(static_cast<std::int64_t>(d), slice.offset[d],
                           slice.tensor.size(static_cast<std::int64_t>(d)));
          }
          EXPECT_TRUE(to.eq(-1).all().item<bool>());
          to.copy_(slice.tensor);
        }
        const at::Tensor want = at::full({all}, -1, at::kLong);
        want.narrow(0, begin, end - begin).copy_(flat);
        EXPECT_TRUE(at::equal(got.reshape({-1}), want));
      }
    }
  }
}

TEST(SlicesOfRange, LeaveOutPadding) {
  // Rows 6 to 8 of a tensor with 7 rows: the last two are padding.
  const Slices slices = slices_of_range({"t", {7, 2}, {6, 0}, {3, 2}}, 1, at::arange(5));
  ASSERT_EQ(slices.size(), 1U);
  EXPECT_THAT(slices[0].offset, ElementsAre(6, 1));
  EXPECT_EQ(slices[0].tensor.numel(), 1);
}

TEST(Deal, GivesEachSliceToOneRankAndBalancesTheBytes) {
  Slices all;
  for (int i = 0; i < 50; ++i)
    all.push_back(whole_slice("t" + std::to_string(i), at::zeros({1 + i * 7 % 20})));
  std::multiset<std::string> names;
  std::vector<std::size_t> bytes(4, 0);
  for (int rank = 0; rank < 4; ++rank) {
    for (const Slice& slice : deal(all, rank, 4)) {
      names.insert(slice.name);
      bytes[static_cast<std::size_t>(rank)] += slice.tensor.nbytes();
    }
  }
  EXPECT_EQ(names.size(), 50U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 50U);
  EXPECT_LT(
      *std::max_element(bytes.begin(), bytes.end()) - *std::min_element(bytes.begin(), bytes.end()),
      20 * sizeof(float));
}

TEST(ShardedCheckpoint, LoadsUnderAnyOtherDivision) {
  const TempDir dir;
  const auto tensors = some_tensors(3);
  std::int64_t step = 0;
  for (const Shard saved : {flat_shards, column_shards, whole_shards}) {
    for (const int ranks : {1, 3, 4}) {
      SCOPED_TRACE(ranks);
      const std::string folder = save_over(ranks, dir.path(), ++step, tensors, saved);
      EXPECT_EQ(folder, dir / internal::folder_name(step));
      expect_whole(folder, tensors);
      for (const Shard loaded : {flat_shards, column_shards}) {
        for (const int others : {1, 2, 5}) expect_slices(folder, tensors, loaded, others);
      }
      verify(folder);
    }
  }
}

TEST(ShardedCheckpoint, ConvertsToTheDtypeOfTheSlice) {
  const TempDir dir;
  const std::string folder = save_over(2, dir.path(), 1, some_tensors(5), flat_shards);
  const at::Tensor half = at::zeros({4, 9}, at::kDouble);
  Reader(folder).fill("model", {whole_slice("blocks.1.weight", half)});
  EXPECT_TRUE(at::equal(half, some_tensors(5)[3].tensor.to(at::kDouble)));
}

TEST(ShardedCheckpoint, WritesHuggingFacesIndexAndPlainSafetensorsFiles) {
  const TempDir dir;
  const auto tensors = some_tensors(7);
  const std::string folder = save_over(2, dir.path(), 9, tensors, flat_shards);
  EXPECT_THAT(names_in(folder), ElementsAre("manifest", "model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors",
                                            "model.safetensors.index.json", "state.json"));
  const auto index =
      internal::parse_index(read_file(folder + "/model.safetensors.index.json", 1 << 20), "index");
  EXPECT_EQ(index.files.at("steps"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(index.files.at("embedding.weight[0:18,0:6]"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(index.files.at("embedding.weight[19:37,0:6]"), "model-00002-of-00002.safetensors");
  EXPECT_THAT(index.shapes.at("embedding.weight"), ElementsAre(37, 6));
  const auto file = load_safetensors(folder + "/model-00002-of-00002.safetensors");
  EXPECT_TRUE(at::equal(file.tensors.at("embedding.weight[19:37,0:6]"),
                        tensors[0].tensor.narrow(0, 19, 18)));
  // Whole tensors keep their own names, so that any reader of this layout can load them.
  const std::string dealt = save_over(2, dir.path(), 10, tensors, whole_shards);
  const auto whole =
      internal::parse_index(read_file(dealt + "/model.safetensors.index.json", 1 << 20), "index");
  EXPECT_EQ(whole.files.size(), tensors.size());
  for (const Named& one : tensors) EXPECT_TRUE(whole.files.contains(one.name)) << one.name;
}

std::int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  std::int64_t bytes = 0;
  io >> word >> bytes;
  return bytes;
}

TEST(ShardedCheckpoint, ReadsOnlyTheBytesThatARankNeeds) {
  const TempDir dir;
  const std::vector<Named> tensors{
      {"w", at::arange(std::int64_t{4} << 20, at::kFloat).view({4096, 1024})}};
  const std::string folder = save_over(2, dir.path(), 1, tensors, flat_shards);
  const at::Tensor rows = at::zeros({512, 1024});
  const std::int64_t before = bytes_read();
  if (before == 0) GTEST_SKIP() << "no /proc/self/io here";
  Reader(folder).fill("model", {{"w", {4096, 1024}, {1000, 0}, rows}});
  EXPECT_LT(bytes_read() - before, 5 << 20);  // 2 MiB of rows, in chunks of 1 MiB, and headers
  EXPECT_TRUE(at::equal(rows, tensors[0].tensor.narrow(0, 1000, 512)));
}

TEST(ShardedCheckpoint, DetectsDamageInTheBytesThatItReads) {
  const TempDir dir;
  const auto tensors = some_tensors(1, 200'000);  // 4.8 MB
  const std::string folder = save_over(2, dir.path(), 1, tensors, flat_shards),
                    file = folder + "/model-00001-of-00002.safetensors";
  flip(file, 2'000'000);
  expect_refused([&] { load(folder); }, Errc::kCorrupt,
                 "model-00001-of-00002.safetensors: its checksum at offset 1048576");
  expect_refused([&] { verify(folder); }, Errc::kCorrupt,
                 "model-00001-of-00002.safetensors: its checksum at offset 1048576");
  const at::Tensor row = at::zeros({1, 6});
  Reader(folder).fill("model", {{"embedding.weight", {200'000, 6}, {199'999, 0}, row}});
  EXPECT_TRUE(at::equal(row, tensors[0].tensor.narrow(0, 199'999, 1)));
  flip(file, 2'000'000);
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_refused([&] { Reader{folder}; }, Errc::kCorrupt, "model-00001-of-00002.safetensors: has");
}

TEST(ShardedCheckpoint, ReportsWhatDoesNotFitBeforeItChangesATensor) {
  const TempDir dir;
  const std::string folder = save_over(2, dir.path(), 1, some_tensors(1), flat_shards);
  const Reader reader(folder);
  const at::Tensor bias = at::zeros({7}), other = at::zeros({8});
  expect_refused(
      [&] {
        reader.fill("model", {whole_slice("blocks.0.bias", bias), whole_slice("head", other)});
      },
      Errc::kInvalidArgument, "has no tensor \"head\"");
  expect_refused([&] { reader.fill("model", {whole_slice("blocks.0.bias", other)}); },
                 Errc::kInvalidArgument, "another shape");
  const at::Tensor counts = at::zeros({7}, at::kLong);
  expect_refused([&] { reader.fill("model", {whole_slice("blocks.0.bias", counts)}); },
                 Errc::kInvalidArgument,
                 "\"blocks.0.bias\" is Float and the model's is Long, which is not converted");
  expect_refused([&] { reader.fill("optimizer", {}); }, Errc::kInvalidArgument,
                 "no part \"optimizer\"");
  EXPECT_EQ(bias.abs().sum().item<float>(), 0);
}

TEST(ShardedCheckpoint, AllRanksFindTheSameNewestCompleteCheckpoint) {
  const TempDir dir;
  for (const std::int64_t step : {1, 2, 3})
    save_over(2, dir.path(), step, some_tensors(step, 200'000), flat_shards);
  flip(dir / "step-00000003/model-00002-of-00002.safetensors", 2'000'000);
  fs::remove(dir / "step-00000002/manifest");
  replicate(3, [&](const Group& group) {
    const Latest found = latest(dir.path(), group);
    EXPECT_EQ(found.folder, dir / "step-00000001");
    EXPECT_THAT(found.damaged, ElementsAre(HasSubstr("step-00000003/model-00002"),
                                           HasSubstr("step-00000002/manifest: missing")));
    EXPECT_THAT(found.damaged_steps, ElementsAre(3, 2));
    EXPECT_FALSE(latest(dir / "nowhere", group).folder);
  });
}

// Returns the message of a failing save, which must be the same on all three ranks.
std::string refused_by_all(const std::string& dir, const std::function<Shards(int rank)>& shards,
                           Errc code) {
  std::mutex mutex;
  std::vector<std::string> said;
  replicate(3, [&](const Group& group) {
    const std::string what = refusal([&] { save(dir, shards(group.rank()), group); }, code);
    at::Tensor one = at::ones({1});
    group.all_reduce(one);  // the group still works
    EXPECT_EQ(one.item<float>(), 3);
    const std::scoped_lock lock(mutex);
    said.push_back(what);
  });
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
  return said[0];
}

TEST(ShardedCheckpoint, AllRanksRefuseSlicesThatDoNotMakeUpWholeTensors) {
  const TempDir dir;
  const auto tensors = some_tensors(1);
  const auto with = [&](const std::function<void(int rank, Slices& slices)>& change) {
    return [&tensors, change](int rank) {
      Shards shards = shards_of(1, tensors, flat_shards, rank, 3);
      change(rank, shards.parts["model"]);
      return shards;
    };
  };
  EXPECT_THAT(refused_by_all(dir.path(), with([](int rank, Slices& s) {
                               if (rank == 1) s.erase(s.begin());
                             }),
                             Errc::kInvalidArgument),
              HasSubstr("do not make up the whole"));
  EXPECT_THAT(refused_by_all(dir.path(), with([](int rank, Slices& s) {
                               if (rank > 0) s.push_back(whole_slice("x", at::zeros({2})));
                             }),
                             Errc::kInvalidArgument),
              HasSubstr("two ranks give \"x\""));
  EXPECT_THAT(refused_by_all(dir.path(), with([](int rank, Slices& s) {
                               if (rank == 2) s[0].tensor = s[0].tensor.to(at::kHalf);
                             }),
                             Errc::kInvalidArgument),
              HasSubstr("different shapes or dtypes"));
  // As many entries as the whole has, but some twice and others not at all.
  EXPECT_THAT(refused_by_all(dir.path(), with([](int rank, Slices& s) {
                               if (rank < 2)
                                 s.push_back({"y", {2, 3}, {0, rank}, at::zeros({2, 2 - rank})});
                             }),
                             Errc::kInvalidArgument),
              HasSubstr("the ranks' slices of \"y\" overlap"));
  EXPECT_THAT(refused_by_all(dir.path(), with([](int rank, Slices& s) {
                               if (rank == 2) s[0].name = "a[0:1]";
                             }),
                             Errc::kInvalidArgument),
              HasSubstr("no tensor can be called"));
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(ShardedCheckpoint, AllRanksFailWhenOneCannotWriteAndOlderCheckpointsStay) {
  const TempDir dir;
  const auto tensors = some_tensors(1), others = some_tensors(2);
  const std::string folder = save_over(3, dir.path(), 1, tensors, flat_shards);
  const struct {
    FileCall call;
    const char* file;
    int error_number;
    const char* reason;
  } faults[] = {
      {FileCall::kWrite, "model-00002-of-00003.safetensors", ENOSPC, "rank 1: cannot write"},
      {FileCall::kCreate, "model-00003-of-00003.safetensors", EROFS, "rank 2: cannot create"},
      {FileCall::kFlush, "model-00001-of-00003.safetensors", EIO, "rank 0: cannot flush"},
      {FileCall::kWrite, "manifest", ENOSPC, "rank 0: cannot write"},
      {FileCall::kFlush, ".tmp-step-00000002", EIO, "rank 0: cannot flush the folder"},
      {FileCall::kMakeFolder, ".tmp-step-00000002", ENOENT, "rank 0: cannot make the folder"},
      {FileCall::kRename, "step-00000002", ESTALE, "rank 0: cannot rename to"}};
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.reason);
    const FileFaults faulty([&](FileCall call, const std::string& path) {
      return call == fault.call && path.ends_with(std::string("/") + fault.file)
                 ? fault.error_number
                 : 0;
    });
    const Errc code = fault.error_number == EROFS || fault.error_number == ENOENT
                          ? Errc::kInvalidArgument
                          : Errc::kUnavailable;
    const std::string said = refused_by_all(
        dir.path(), [&](int rank) { return shards_of(2, others, flat_shards, rank, 3); }, code);
    EXPECT_THAT(said,
                HasSubstr(std::string("the checkpoint of step 2 is not saved: ") + fault.reason));
    EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
  }
  expect_whole(folder, tensors);
}

// With and without the system call that exchanges two names. Step 1 is saved again; step 2 is new.
TEST(ShardedCheckpoint, LeavesTheStepAsItWasIfItsNewFolderCannotTakeItsName) {
  const TempDir dir;
  const auto tensors = some_tensors(1), others = some_tensors(2);
  const std::string folder = save_over(3, dir.path(), 1, tensors, flat_shards);
  const struct {
    bool exchanges;
    FileCall call;
    std::string path;
    std::int64_t step;
  } faults[] = {{true, FileCall::kFlush, dir.path(), 1},
                {true, FileCall::kFlush, dir.path(), 2},
                {false, FileCall::kFlush, dir.path(), 1},
                {false, FileCall::kRename, folder, 1}};
  for (const auto& fault : faults) {
    SCOPED_TRACE(std::to_string(fault.exchanges) + " " + fault.path);
    std::atomic<bool> has_failed{false};
    const FileFaults faulty([&](FileCall call, const std::string& path) {
      if (call == FileCall::kExchange && !fault.exchanges) return EINVAL;
      const bool is_here = call == fault.call && path == fault.path;
      return is_here && !has_failed.exchange(true) ? EIO : 0;
    });
    refused_by_all(
        dir.path(), [&](int rank) { return shards_of(fault.step, others, flat_shards, rank, 3); },
        Errc::kUnavailable);
    EXPECT_TRUE(has_failed);
    EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
    expect_whole(folder, tensors);
  }
}

// A crash between the two renames of a file system that cannot exchange names.
TEST(ShardedCheckpoint, IsFoundAgainAfterACrashThatLeftItUnderATemporaryName) {
  const TempDir dir;
  const auto tensors = some_tensors(1);
  fs::rename(save_over(1, dir.path(), 1, tensors, flat_shards), dir / ".tmp-step-00000001-old");
  fs::create_directory(dir / ".tmp-step-00000001");
  save_over(1, dir.path(), 2, tensors, flat_shards);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001", "step-00000002"));
  expect_whole(dir / "step-00000001", tensors);
}

TEST(ShardedCheckpoint, IsReplacedWhereTheFileSystemCannotExchangeNames) {
  const TempDir dir;
  const FileFaults without_exchange(
      [](FileCall call, const std::string&) { return call == FileCall::kExchange ? EINVAL : 0; });
  save_over(1, dir.path(), 1, some_tensors(1), flat_shards);
  const auto tensors = some_tensors(2);
  const std::string folder = save_over(1, dir.path(), 1, tensors, flat_shards);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
  expect_whole(folder, tensors);
}

// An error of rank 0 after the ranks have agreed that the checkpoint is complete.
TEST(ShardedCheckpoint, IsSavedOnAllRanksAlsoIfOlderOnesCannotBeRemoved) {
  const TempDir dir;
  const std::string folder = dir.path() + "/now", moved = dir.path() + "/moved";
  save_over(2, folder, 1, some_tensors(1), flat_shards);
  std::atomic<bool> is_moved{false};
  const FileFaults faults([&](FileCall call, const std::string&) {
    if (call == FileCall::kRemove && !is_moved.exchange(true)) {
      fs::rename(folder, moved);
      std::ofstream(folder) << "no folder";
    }
    return 0;
  });
  const auto tensors = some_tensors(2);
  replicate(2, [&](const Group& group) {
    EXPECT_NO_THROW(
        save(folder, shards_of(1, tensors, flat_shards, group.rank(), 2), group, {.keep = 1}));
  });
  EXPECT_TRUE(is_moved);
  expect_whole(moved + "/step-00000001", tensors);
}

TEST(ShardedCheckpoint, IsRefusedOnAllRanksWhileAnotherJobSavesIntoTheFolder) {
  const TempDir dir;
  const auto tensors = some_tensors(1), others = some_tensors(2);
  std::atomic<bool> is_under_way{false};
  std::string said;
  const FileFaults second_job([&](FileCall call, const std::string& path) {
    if (call == FileCall::kWrite && path.ends_with("/manifest") && !is_under_way.exchange(true)) {
      said = refused_by_all(
          dir.path(), [&](int rank) { return shards_of(1, others, flat_shards, rank, 3); },
          Errc::kUnavailable);
    }
    return 0;
  });
  Checkpoint first{.step = 1, .parts = {}, .state = {}};
  for (const Named& one : tensors) first.parts["model"][one.name] = one.tensor;
  const std::string folder = save(dir.path(), first);
  EXPECT_THAT(said, HasSubstr("rank 0: another process is saving a checkpoint into " + dir.path()));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
  expect_whole(folder, tensors);
  save_over(3, dir.path(), 2, others, flat_shards);  // the folder is free again
}

// On a file system without locks, where another job has begun the same step meanwhile.
TEST(ShardedCheckpoint, IsNotReplacedByFilesThatAnotherJobHasBegun) {
  const TempDir dir;
  const auto tensors = some_tensors(1), others = some_tensors(2);
  const std::string aside = dir / ".tmp-step-00000001";
  for (const Moment& moment : moments_of_a_save(aside)) {
    SCOPED_TRACE(moment.path);
    bool has_begun = true;  // the first save is alone
    const OtherJob other_job(moment, aside, "model-00001-of-00003.safetensors", has_begun);
    const std::string folder = save_over(3, dir.path(), 1, tensors, flat_shards);
    has_begun = false;
    EXPECT_THAT(
        refused_by_all(
            dir.path(), [&](int rank) { return shards_of(1, others, flat_shards, rank, 3); },
            Errc::kUnavailable),
        HasSubstr(aside + " was removed or replaced during the save"));
    expect_whole(folder, tensors);
    EXPECT_TRUE(fs::exists(aside + "/model-00001-of-00003.safetensors"));  // still the other job's
  }
}

TEST(AsyncSaver, LetsTheStateChangeWhileTheFilesAreWritten) {
  const TempDir dir;
  std::atomic<bool> blocked{true};
  const FileFaults slow([&](FileCall call, const std::string&) {
    while (call == FileCall::kWrite && blocked) std::this_thread::yield();
    return 0;
  });
  replicate(2, [&](const Group& group) {
    const auto mine = some_tensors(1);
    AsyncSaver saver(group);
    saver.reserve(shards_of(5, mine, flat_shards, group.rank(), 2));
    EXPECT_FALSE(saver.save(dir.path(), shards_of(5, mine, flat_shards, group.rank(), 2)));
    for (const Named& one : mine) one.tensor.zero_();
    EXPECT_FALSE(saver.poll());
    at::Tensor one = at::ones({1});
    group.all_reduce(one);  // both ranks are here, and no byte is written yet
    blocked = false;
    const auto result = saver.wait();
    ASSERT_TRUE(result && !result->error);
    EXPECT_EQ(result->folder, dir / "step-00000005");
    EXPECT_GT(result->bytes, 0);
    EXPECT_GT(result->whole, result->stall);
    EXPECT_FALSE(saver.poll());
  });
  expect_whole(dir / "step-00000005", some_tensors(1));
}

TEST(AsyncSaver, WritesBeforeItReturnsWithoutStagingMemory) {
  const TempDir dir;
  replicate(2, [&](const Group& group) {
    const auto mine = some_tensors(1);
    AsyncSaver saver(group, 0);
    saver.save(dir.path(), shards_of(5, mine, flat_shards, group.rank(), 2));
    for (const Named& one : mine) one.tensor.zero_();
    EXPECT_FALSE(
        saver.save(dir.path(), shards_of(6, some_tensors(6), flat_shards, group.rank(), 2))->error);
  });
  expect_whole(dir / "step-00000005", some_tensors(1));
  expect_whole(dir / "step-00000006", some_tensors(6));
}

TEST(AsyncSaver, ReportsAFailureOnAllRanksAndCanSaveAgain) {
  const TempDir dir;
  std::atomic<bool> full{true};
  const FileFaults faults([&](FileCall call, const std::string& path) {
    return full && call == FileCall::kWrite && path.ends_with("/model-00002-of-00002.safetensors")
               ? ENOSPC
               : 0;
  });
  replicate(2, [&](const Group& group) {
    const auto mine = some_tensors(1);
    AsyncSaver saver(group);
    saver.save(dir.path(), shards_of(1, mine, flat_shards, group.rank(), 2));
    const auto failed = saver.wait();
    ASSERT_TRUE(failed && failed->error);
    EXPECT_EQ(failed->error->code(), Errc::kUnavailable);
    EXPECT_THAT(failed->error->message(), HasSubstr("step 1 is not saved: rank 1: cannot write"));
    group.barrier();
    full = false;
    saver.save(dir.path(), shards_of(2, mine, flat_shards, group.rank(), 2));
    EXPECT_FALSE(saver.wait()->error);
  });
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000002"));
}

// Until it is destroyed, no thread of this process can start: its stack would need more memory than
// there is.
class WithoutThreads {
 public:
  WithoutThreads() {
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_getattr_default_np(&before_);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~WithoutThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  WithoutThreads(const WithoutThreads&) = delete;
  WithoutThreads& operator=(const WithoutThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

TEST(AsyncSaver, IsMadeOnAllRanksOrOnNone) {
  const auto make = [](const Group& group) {
    try {
      const AsyncSaver saver(group);
    } catch (const std::exception& error) {
      return std::string(describe(error));
    }
    return std::string("made");
  };
  const auto codes = comm::fork_ranks(2, "auto", [&](const Group& group) {
    std::string said;
    {
      std::optional<WithoutThreads> none;
      if (group.rank() == 1) none.emplace();
      said = make(group);
    }
    const bool is_told = said.find("cannot start a thread") != std::string::npos &&
                         (group.rank() == 1 || said.find("rank 1 failed") != std::string::npos);
    if (!is_told) std::fprintf(stderr, "rank %d: %s\n", group.rank(), said.c_str());
    return is_told && make(group) == "made" ? 0 : 1;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

// Without the report, the other rank would wait for its timeout.
TEST(AsyncSaver, ReportsAnExceptionOfLibtorchWhileTheStateIsCopied) {
  const TempDir dir;
  replicate(2, [&](const Group& group) {
    Shards shards = shards_of(1, some_tensors(1), flat_shards, group.rank(), 2);
    if (group.rank() == 1) {
      for (Slice& slice : shards.parts.at("model")) slice.tensor = slice.tensor.to(at::kMeta);
    }
    AsyncSaver saver(group);
    saver.save(dir.path(), shards);
    const auto failed = saver.wait();
    ASSERT_TRUE(failed && failed->error);
    EXPECT_THAT(failed->error->message(), HasSubstr("step 1 is not saved: rank 1: "));
  });
}

}  // namespace
}  // namespace weft::checkpoint
