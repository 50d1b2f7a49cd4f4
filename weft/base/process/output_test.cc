#include "weft/base/process/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

}  // namespace
}  // namespace weft
