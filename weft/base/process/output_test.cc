#include "weft/base/process/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>

namespace weft {
namespace {

// Ends the process with 0 if all output was written, with 1 after it has said what was lost.
void write_to(const char* file) {
  ::dup2(::open(file, O_WRONLY), 1);
  std::cout << "a result\n";
  const auto lost = lost_output();
  if (lost) std::cerr << lost->what();
  ::_exit(lost ? 1 : 0);
}

TEST(Output, ThatAFullDiskHasLostIsAnError) {
  EXPECT_EXIT(write_to("/dev/full"), testing::ExitedWithCode(1),
              "standard output: No space left on device");
  EXPECT_EXIT(write_to("/dev/null"), testing::ExitedWithCode(0), "");
}

// Its standard output is a pipe whose reader has ended.
void write_to_nobody() {
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(2);
  ::dup2(ends[1], 1);
  ::close(ends[0]);
  ::signal(SIGPIPE, SIG_DFL);
  outlive_readers();
  std::cout << "a result\n";
  const auto lost = lost_output();
  if (lost) std::cerr << lost->what();
  ::_exit(lost ? 1 : 0);
}

void execute_a_program() {
  ::signal(SIGPIPE, SIG_DFL);
  outlive_readers();
  ::execl("/bin/sh", "sh", "-c", "kill -PIPE $$", nullptr);
  ::_exit(2);
}

TEST(Output, WithoutAReaderDoesNotEndAProcessThatOutlivesItsReaders) {
  EXPECT_EXIT(write_to_nobody(), testing::ExitedWithCode(1), "standard output: Broken pipe");
  EXPECT_EXIT(execute_a_program(), testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace weft
