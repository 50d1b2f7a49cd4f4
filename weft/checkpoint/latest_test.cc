// The newest checkpoint is found while a job saves, removes and replaces checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/latest.h"
#include "weft/checkpoint/testing/dealt.h"

namespace weft::checkpoint {
namespace latest_test {

using ::testing::IsEmpty;

// `seed` changes every value.
Checkpoint checkpoint_of(std::int64_t step, std::int64_t seed) {
  Checkpoint checkpoint{step, {}, {}};
  for (const Named& one : some_tensors(seed)) checkpoint.parts["model"][one.name] = one.tensor;
  return checkpoint;
}

// Rank 0 of two, whose other rank gives the same answers. `between` is called before each exchange:
// after the folders are listed, and after each verification.
internal::Ranks two_ranks(const std::function<void()>& between) {
  return {.rank = 0,
          .size = 2,
          .exchange =
              [between](const std::string& mine) {
                between();
                return std::vector<std::string>{mine, mine};
              },
          .collect = nullptr};
}

TEST(LatestCheckpoint, IsFoundIfAJobRemovesTheListedOnes) {
  const TempDir dir;
  save(dir.path(), checkpoint_of(100, 1));
  bool has_saved = false;
  const Latest found =
      internal::find_latest(dir.path(), two_ranks([&] {
                              if (!std::exchange(has_saved, true))
                                save(dir.path(), checkpoint_of(200, 2), {.keep = 1});
                            }));
  EXPECT_EQ(found.folder, dir / "step-00000200");
  EXPECT_THAT(found.damaged, IsEmpty());
}

TEST(LatestCheckpoint, IsUnavailableIfEachOneIsRemovedBeforeItIsVerified) {
  const TempDir dir;
  std::filesystem::create_directory(dir / internal::folder_name(0));
  std::int64_t step = 0;
  bool is_listed = false;
  const internal::Ranks ranks = two_ranks([&] {
    is_listed = !is_listed;
    if (!is_listed) return;
    std::filesystem::rename(dir / internal::folder_name(step),
                            dir / internal::folder_name(step + 1));
    ++step;
  });
  expect_refused([&] { internal::find_latest(dir.path(), ranks); }, Errc::kUnavailable,
                 "before they are verified; try again");
  EXPECT_EQ(step, 100);
}

// Files of the old and of the new checkpoint together do not fit the manifest.
TEST(LatestCheckpoint, IsNotDamagedWhileAJobSavesTheSameStepAgain) {
  const TempDir dir(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "");
  save(dir.path(), checkpoint_of(1, 0));
  {
    const std::jthread reader([&](const std::stop_token& ended) {
      while (!ended.stop_requested()) {
        Latest found;
        ASSERT_NO_THROW(found = latest(dir.path()));
        ASSERT_THAT(found.damaged, IsEmpty());
      }
    });
    for (std::int64_t seed = 1; seed <= 50; ++seed) save(dir.path(), checkpoint_of(1, seed));
  }
  EXPECT_EQ(latest(dir.path()).folder, dir / "step-00000001");
}

}  // namespace latest_test
}  // namespace weft::checkpoint
