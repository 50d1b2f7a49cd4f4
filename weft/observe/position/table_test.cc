#include "weft/observe/position/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace weft::observe::table_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// The number of a process that has ended.
pid_t ended_process() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

// The view of rank 2 in step 7, as `weft status` reads it.
RankView view_of(pid_t pid, pid_t thread) {
  const auto page = RankPage::make(1, 2, 4);
  page.record(0).standing.write({.step = 7, .rank = 2, .pid = pid, .thread = thread});
  auto views = views_of(page);
  read_thread(views.at(0));
  return views[0];
}

TEST(TableOfRanks, SaysThatARankHasEnded) {
  const pid_t pid = ended_process();
  const RankView view = view_of(pid, pid);
  EXPECT_THAT(table_of({&view, 1}, 0), ContainsRegex("\n2 +7 +- +has ended "));
  EXPECT_EQ(json_of({&view, 1}, 0)["ranks"][0]["process"], "has ended");
}

TEST(TableOfRanks, DoesNotTakeTheEndOfAThreadForThatOfTheRank) {
  pid_t thread = 0;
  std::thread([&] { thread = static_cast<pid_t>(::syscall(SYS_gettid)); }).join();
  const RankView view = view_of(::getpid(), thread);
  EXPECT_THAT(table_of({&view, 1}, 0), Not(HasSubstr("has ended")));
}

TEST(TableOfRanks, HasTheRanksThatTheLauncherHasNumbered) {
  const auto page = RankPage::make(2, -1, 0);
  EXPECT_TRUE(views_of(page).empty());
  page.clear(0, 2);
  ASSERT_EQ(views_of(page).size(), 1U);
  EXPECT_THAT(table_of(views_of(page), 0), ContainsRegex("\n2 .*has not started weft"));
  page.clear(1, 3);
  EXPECT_EQ(views_of(page).at(1).rank, 3);
}

}  // namespace
}  // namespace weft::observe::table_test
