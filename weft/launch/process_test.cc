#include "weft/launch/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft::launch {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    in = Fd(ends[0]);
    out = Fd(ends[1]);
  }
  // Reads up to the end of the stream; all writers must end.
  std::string read_all() {
    out.reset();
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(in.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    return text;
  }
  Fd in, out;
};

ProcessOptions shell(const std::string& script) {
  ProcessOptions options;
  options.argv = {"sh", "-c", script};
  return options;
}

TEST(Process, DistinguishesExitCodesFromSignals) {
  const auto exited = Process(shell("exit 3")).wait(soon());
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->code(), 3);
  EXPECT_EQ(exited->describe(), "exit code 3");
  const auto killed = Process(shell("kill -9 $$")).wait(soon());
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->code(), 137);
  EXPECT_EQ(killed->describe(), "SIGKILL (signal 9)");
}

TEST(Process, RunsThePreparationInItsOwnGroupBeforeTheProgram) {
  Pipe pipe;
  auto options = shell("echo program");
  options.stdout_fd = pipe.out.get();
  options.before = [out = pipe.out.get()] {
    const std::string line = ::getpgrp() == ::getpid() ? "own group\n" : "another group\n";
    if (::write(out, line.data(), line.size()) < 0) ::_exit(1);
  };
  Process process(options);
  EXPECT_EQ(pipe.read_all(), "own group\nprogram\n");
}

TEST(Process, NamesAProgramThatCannotBeStartedAndTheReason) {
  ProcessOptions options;
  options.argv = {"./no-such-program"};
  try {
    Process process(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_EQ(error.message(), "cannot start \"./no-such-program\": No such file or directory");
  }
}

TEST(Process, IsNotWaitedForLongIfItIsStoppedBeforeItsProgram) {
  Pipe pipe;
  auto options = shell("echo program");
  options.before = [] { ::raise(SIGSTOP); };
  options.start_limit = std::chrono::milliseconds(200);
  options.stdout_fd = pipe.out.get();
  {
    Process process(options);
    EXPECT_TRUE(process.is_stopped());
    EXPECT_FALSE(process.poll());
  }
  EXPECT_EQ(pipe.read_all(), "") << "it was killed";
}

TEST(Process, RunsAFunctionInACopyOfThisProcess) {
  Pipe pipe;
  const pid_t here = ::getpid();
  ProcessOptions options;
  options.stdout_fd = pipe.out.get();
  options.environment = {"WEFT_PROCESS_TEST=hello"};
  options.call = [here] {
    ::dprintf(1, "%s %d", std::getenv("WEFT_PROCESS_TEST"), ::getppid() == here);
    return 7;
  };
  Process process(options);
  EXPECT_EQ(process.wait(soon())->code(), 7);
  EXPECT_EQ(pipe.read_all(), "hello 1");
}

TEST(Process, ConvertsAFunctionsExceptionToAnExitCode) {
  Pipe pipe;
  ProcessOptions options;
  options.stderr_fd = pipe.out.get();
  options.call = []() -> int { throw Error(Errc::kPeerLost, "gone"); };
  Process process(options);
  EXPECT_EQ(process.wait(soon())->code(), exit_code(Errc::kPeerLost));
  EXPECT_EQ(pipe.read_all(), "weft: PeerLost: gone\n");
}

// Descriptor 9 exists in the child only if it was requested.
TEST(Process, InheritsTheChosenDescriptorsAndNoOthers) {
  Pipe pipe;
  ASSERT_EQ(::dup2(pipe.out.get(), 9), 9);
  const Fd nine(9);
  for (const bool chosen : {true, false}) {
    auto options = shell("test -e /proc/self/fd/9");
    if (chosen) options.inherit = {9};
    EXPECT_EQ(Process(options).wait(soon())->ok(), chosen);
  }
}

TEST(Process, GivesAFunctionTheSameDescriptorsAsExec) {
  Pipe pipe;
  const int closed = pipe.in.get(), kept = pipe.out.get();
  ProcessOptions options;
  options.inherit = {kept};
  options.call = [=] {
    return (::fcntl(closed, F_GETFD) >= 0 ? 1 : 0) + (::fcntl(kept, F_GETFD) < 0 ? 2 : 0);
  };
  EXPECT_EQ(Process(options).wait(soon())->code(), 0);
}

TEST(Process, IsKilledAfterTheGraceWhenItIgnoresSigterm) {
  Pipe pipe;
  auto options = shell("trap '' TERM; echo ready; while :; do sleep 60; done");
  options.stdout_fd = pipe.out.get();
  Process process(options);
  char ready;
  ASSERT_EQ(::read(pipe.in.get(), &ready, 1), 1);
  const auto status = process.terminate(std::chrono::milliseconds(20));
  EXPECT_TRUE(status.signaled);
  EXPECT_EQ(status.value, SIGKILL);
}

TEST(Process, EndsBySigtermIfItDoesNotIgnoreIt) {
  const auto status = Process(shell("exec sleep 60")).terminate();
  EXPECT_EQ(status.value, SIGTERM);
}

// The grandchild holds the other end of the pipe, so the stream ends only when it is dead.
TEST(Process, KillsTheRestOfItsGroupWhenItEnds) {
  Pipe pipe;
  auto options = shell("sleep 1000 & exit 0");
  options.stdout_fd = pipe.out.get();
  Process process(options);
  EXPECT_TRUE(process.wait(soon())->ok());
  EXPECT_EQ(pipe.read_all(), "");
}

TEST(Process, DiesWithItsParent) {
  Pipe pipe;
  ProcessOptions parent;
  parent.inherit = {pipe.out.get()};
  const int out = pipe.out.get();
  parent.call = [out] {
    auto child = shell("echo ready; exec sleep 1000");
    child.stdout_fd = out;
    Process process(child);
    ::pause();
    return 0;
  };
  Process process(parent);
  char ready;
  ASSERT_EQ(::read(pipe.in.get(), &ready, 1), 1);
  ::kill(process.pid(), SIGKILL);  // only the parent: the child is in its own group
  EXPECT_EQ(pipe.read_all(), "eady\n");
}

TEST(Process, EndsWithItsObject) {
  Pipe pipe;
  {
    auto options = shell("echo ready; exec sleep 1000");
    options.stdout_fd = pipe.out.get();
    Process process(options);
  }
  pipe.out.reset();
  pollfd writers{pipe.in.get(), 0, 0};
  ASSERT_EQ(::poll(&writers, 1, 0), 1);
  EXPECT_NE(writers.revents & POLLHUP, 0);
}

}  // namespace
}  // namespace weft::launch
