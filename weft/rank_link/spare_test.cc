#include "weft/rank_link/spare.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/rank_link/link.h"

namespace weft::rank_link {
namespace {

const auto kLimit = Deadline::in(std::chrono::seconds(30));

// A spare: a fork that waits, and ends with code 5 if `check` holds once it has a rank.
pid_t start_spare(std::pair<Link, Link>& ends, const std::function<bool()>& check) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::close(ends.first.fd());  // a launcher's end is not inherited
  ::setenv(kSpareVariable, "1", 1);
  ::setenv("RANK", "", 1);
  become_rank(ends.second);
  ::_exit(check() ? 5 : 6);
}

int code_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Spare, TextsOfAnEnvironmentKeepBlanksLinesAndEqualSigns) {
  const std::vector<std::string> entries{"A=1", "B=", "C=x=y z", "D=two\nlines"};
  EXPECT_EQ(environment_of(to_text(entries)), entries);
  EXPECT_TRUE(environment_of("").empty());
}

TEST(Spare, AProcessThatIsNoSpareReturnsAtOnce) {
  ::unsetenv(kSpareVariable);
  EXPECT_FALSE(is_spare());
  become_rank();
}

TEST(Spare, WaitsForARankAndTakesItsEnvironment) {
  auto ends = Link::make();
  Link& launcher = ends.first;
  const pid_t pid = start_spare(ends, [] {
    return !is_spare() && std::string(std::getenv("RANK")) == "3" &&
           std::string(std::getenv("PLACE")) == "a b";
  });
  EXPECT_EQ(launcher.wait(kLimit), (Message{"ready", ""}));
  launcher.tell("ranks", "2");  // means nothing to a spare
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  launcher.tell("become", to_text({"RANK=3", "PLACE=a b"}));
  EXPECT_EQ(code_of(pid), 5);
}

TEST(Spare, EndsWithItsLauncher) {
  std::optional<Link> launcher;
  pid_t pid;
  {
    auto ends = Link::make();
    pid = start_spare(ends, [] { return true; });
    launcher.emplace(std::move(ends.first));
  }
  EXPECT_EQ(launcher->wait(kLimit), (Message{"ready", ""}));
  launcher.reset();
  EXPECT_EQ(code_of(pid), 0);
}

}  // namespace
}  // namespace weft::rank_link
