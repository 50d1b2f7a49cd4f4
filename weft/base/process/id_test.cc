#include "weft/base/process/id.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace weft {
namespace {

// The exit code of `child`, a process that has been made by a fork.
int code_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessId, IsThatOfTheForkedProcessHoweverItWasForked) {
  ASSERT_EQ(process_id(), ::getpid());
  ASSERT_EQ(process_id(), ::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    if (process_id() != ::getpid()) ::_exit(1);
    // A fork that the C library does not see.
    const auto grandchild = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (grandchild == 0) ::_exit(process_id() == ::getpid() ? 0 : 1);
    ::_exit(code_of(grandchild) == 0 && process_id() == ::getpid() ? 0 : 2);
  }
  EXPECT_EQ(code_of(child), 0);
  EXPECT_EQ(process_id(), ::getpid());
}

}  // namespace
}  // namespace weft
