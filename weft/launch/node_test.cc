#include "weft/launch/internal/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "weft/launch/launcher.h"

namespace weft::launch::internal {
namespace node_test {

using ::testing::IsEmpty;
using ::testing::StartsWith;

RankProcess rank_that_waits() {
  ProcessOptions options;
  options.call = [] { return ::pause(); };
  return {Process(options), rank_link::Link::make().first, LineRelay(), LineRelay()};
}

// Else an early end of the new process would not count, again and again.
TEST(Node, ForgetsThatTheProcessBeforeWasDismissedWhenItsPlaceIsUsedAgain) {
  LaunchOptions options;
  options.nproc_per_node = "2";
  options.program = {"true"};
  Node node(options);
  node.place(0, rank_that_waits());
  node.place(1, rank_that_waits());
  node.situation.dismissed = {1};
  node.situation.ranks[1] = RankEnd{.status = {true, 9}, .when = {}, .done_without = true};
  node.place(1, rank_that_waits());
  EXPECT_THAT(node.situation.dismissed, IsEmpty());
  EXPECT_FALSE(node.situation.ranks[1]);
}

TEST(Node, CountsTheRanksThatAJobKeepsOrCannotHave) {
  EXPECT_THAT(not_usable(1, {.multiple = 2}), StartsWith("1 rank: the mesh of this job uses "));
  EXPECT_EQ(why_it_keeps(1), "the job keeps 1 rank: new ranks ended before they joined");
  EXPECT_EQ(why_it_keeps(3), "the job keeps 3 ranks: new ranks ended before they joined");
}

}  // namespace node_test
}  // namespace weft::launch::internal
