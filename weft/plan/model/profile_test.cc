// Profiles as files: what is written can be read.
#include "weft/plan/model/profile.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"

namespace weft::plan {
namespace profile_test {

Profile profile_of(std::size_t blocks, std::size_t batches) {
  Profile profile{.name = "made up", .machine = "a machine", .ranks = 2, .tokens = 128};
  for (std::size_t n = 1; n <= batches; ++n) profile.batches.push_back(static_cast<double>(n));
  for (std::size_t b = 0; b < blocks; ++b)
    profile.blocks.push_back({.name = "blocks." + std::to_string(b),
                              .forward = std::vector<double>(batches, 1.25e-3),
                              .backward = std::vector<double>(batches, 2.5e-3),
                              .parameters = 262400,
                              .output_bytes = 65536,
                              .kept_bytes = 1772544});
  return profile;
}

TEST(Profile, OfAThousandBlocksIsReadAsItWasWritten) {
  const Profile written = profile_of(1000, 2);
  const TempDir folder;
  write_file_atomic(folder / "blocks.toml", to_toml(written));
  const Profile read = load_profile(folder / "blocks.toml");
  EXPECT_EQ(read.batches, written.batches);
  ASSERT_EQ(read.blocks.size(), 1000U);
  EXPECT_EQ(read.blocks[999].name, "blocks.999");
  EXPECT_DOUBLE_EQ(read.blocks[999].forward.at(1), 1.25e-3);
  EXPECT_EQ(read.blocks[999].kept_bytes, 1772544);
}

TEST(Profile, ThatCouldNotBeReadIsNotWritten) {
  expect_refused([] { to_toml(profile_of(kMaxProfileBlocks + 1, 1)); }, Errc::kInvalidArgument,
                 "a profile of 10001 blocks with 1 measurement each");
  expect_refused([] { to_toml(profile_of(1, kMaxProfileBatches + 1)); }, Errc::kInvalidArgument,
                 "a profile of 1 block with 17 measurements each");
  Profile named = profile_of(1, 1);
  named.blocks[0].name = std::string(kMaxProfileBytes, 'x');
  expect_refused([&] { to_toml(named); }, Errc::kInvalidArgument, "and 8388608 bytes");
}

}  // namespace profile_test
}  // namespace weft::plan
