#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/comm/internal/descriptors.h"

namespace weft::comm::internal {
namespace {

TEST(DescriptorsOfRecovery, CountWhatWasMeasured) {
  EXPECT_GE(descriptors_of_recovery(70, 46), 102u);  // of 4 ranks over TCP, at most 102 are open
  EXPECT_LE(descriptors_of_recovery(70, 46), 112u);
  EXPECT_GE(descriptors_of_recovery(38, 16), 53u);  // of 2 ranks, at most 53
}

// The exit code of a process that may have so many files, by the soft and the hard limit.
int code_with(rlim_t soft, rlim_t hard) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{soft, hard};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    try {
      reserve_descriptors_for_recovery();
      rlimit now{};
      ::getrlimit(RLIMIT_NOFILE, &now);
      ::_exit(now.rlim_cur == hard ? 0 : 1);
    } catch (const Error& error) {
      const bool names_limit = error.message().find("ulimit -n") != std::string::npos;
      ::_exit(names_limit ? exit_code(error.code()) : 2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(DescriptorsOfRecovery, RaiseTheSoftLimitAndNameAHardOneThatIsTooLow) {
  EXPECT_EQ(code_with(6, 200), 0);
  EXPECT_EQ(code_with(6, 8), exit_code(Errc::kBadConfig));
}

}  // namespace
}  // namespace weft::comm::internal
