#include "weft/comm/internal/job_ranks.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::comm::internal {
namespace {

const std::vector<int> kRanks = {4, 12};

TEST(RenameRanks, RenamesEachRankOfTheGroup) {
  EXPECT_EQ(rename_ranks("rank 1 (process 1) has died while rank 0 waited", kRanks, " of the job"),
            "rank 12 of the job (process 1) has died while rank 4 of the job waited");
  EXPECT_EQ(rename_ranks("all_reduce, rank 0: gone", kRanks, ""), "all_reduce, rank 4: gone");
}

TEST(RenameRanks, LeavesTheRestAsItIs) {
  for (const char* text : {"", "rank", "rank ", "rank x", "frank 1", "rank 7 is unknown",
                           "rank 99999999999999999999", "ranks", "1 rank"}) {
    EXPECT_EQ(rename_ranks(text, kRanks, " of the job"), text);
  }
}

TEST(RenameRanks, RenamesOnce) {
  const std::string once = rename_ranks("rank 0 failed: rank 1 left", kRanks, " of the job");
  EXPECT_EQ(rename_ranks(once, kRanks, " of the job"), once);
}

TEST(InJobRanks, TranslatesContextAndMessage) {
  const Error error(Errc::kPeerLost, "rank 1 has died", {"all_reduce", 0, 1});
  const Error here = in_job_ranks(error, kRanks);
  EXPECT_STREQ(here.what(), "PeerLost{12}: all_reduce, rank 4: rank 12 of the job has died");
  EXPECT_EQ(here.context().peer, 12);
  EXPECT_STREQ(in_job_ranks(error, {}).what(), error.what());
  const Error nobody(Errc::kTimeout, "late", {"barrier", -1, -1});
  EXPECT_EQ(in_job_ranks(nobody, kRanks).context().peer, -1);
}

TEST(RanksInGroup, AreTheInverse) {
  EXPECT_EQ(ranks_in_group(std::vector{5, 7, 2}, std::vector{2, 4, 5}), (std::vector{2, 0}));
  EXPECT_EQ(ranks_in_group(std::vector{1, 3}, {}), (std::vector{1, 3}));
}

}  // namespace
}  // namespace weft::comm::internal
