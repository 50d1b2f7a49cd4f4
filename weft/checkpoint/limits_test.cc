// Nothing is saved that readers would refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/sharded.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/comm/replicate.h"

namespace weft::checkpoint {
namespace limits_test {

using ::testing::ElementsAre;

Shards with_part(const std::string& part, std::int64_t step, const Group& group) {
  Shards mine{.step = step, .parts = {}, .state = {}};
  mine.parts[part] = flat_shards(some_tensors(step), group.rank(), group.size());
  return mine;
}

TEST(CheckpointLimits, TheLongestNameOfAPartIsReadAgain) {
  const TempDir dir;
  const std::string part(101, 'a');
  for (const int ranks : {1, 2}) {
    replicate(ranks,
              [&](const Group& group) { save(dir.path(), with_part(part, ranks, group), group); });
    const std::string folder = dir / internal::folder_name(ranks);
    verify(folder);
    const Checkpoint whole = load(folder);
    for (const Named& one : some_tensors(ranks))
      EXPECT_TRUE(at::equal(whole.parts.at(part).at(one.name), one.tensor)) << one.name;
  }
}

TEST(CheckpointLimits, ALongerNameOfAPartIsRefusedAndOlderCheckpointsStay) {
  const TempDir dir;
  const std::string part(102, 'a'), reason = "a part's name has 1 to 101 letters";
  replicate(2, [&](const Group& group) {
    save(dir.path(), with_part("model", 1, group), group);
    const Shards mine = with_part(part, 2, group);
    expect_refused([&] { check_parts(mine.parts); }, Errc::kInvalidArgument, reason);
    expect_refused([&] { save(dir.path(), mine, group, {.keep = 1}); }, Errc::kInvalidArgument,
                   reason);
  });
  EXPECT_THAT(names_in(dir.path()), ElementsAre("step-00000001"));
  verify(dir / "step-00000001");
}

TEST(CheckpointLimitsSlow, AFileWithALargerHeaderIsNotWritten) {
  const TempDir dir;
  TensorFile file;
  file.tensors[std::string(50'000'000, '"')] = at::zeros({1});  // each takes two characters
  expect_refused([&] { save_safetensors(dir / "file", file); }, Errc::kInvalidArgument,
                 "would be larger than the 100000000 bytes that it may have");
  EXPECT_TRUE(names_in(dir.path()).empty());
}

}  // namespace limits_test
}  // namespace weft::checkpoint
