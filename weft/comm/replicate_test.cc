#include "weft/comm/replicate.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <fstream>

#include "weft/base/error.h"

namespace weft::comm {
namespace replicate_test {

// Stacks of three threads fit, and half as much memory as one has is left for everything else.
void limit_address_space() {
  constexpr rlim_t kStack = rlim_t{1} << 30;
  pthread_attr_t threads;
  ::pthread_attr_init(&threads);
  ::pthread_attr_setstacksize(&threads, kStack);
  ::pthread_setattr_default_np(&threads);
  ::pthread_attr_destroy(&threads);
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most =
      pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + 3 * kStack + kStack / 2;
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST(Replicate, AReplicaThatCannotStartEndsTheOthers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    limit_address_space();
    try {
      replicate(
          64, [](const Group& group) { group.barrier(); }, std::chrono::seconds(20));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(code_of(error) == Errc::kUnavailable ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Replicate, ReplicasWithoutATimeoutMeet) {
  replicate(
      2,
      [](const Group& group) {
        group.barrier();
        group.subgroup({0, 1}, "both").barrier();
      },
      std::chrono::milliseconds::max());
}

// Mostly some of these threads have not started when the first one has waited that long. Rarely
// all meet.
TEST(Replicate, ReplicasThatDoNotMeetInTimeEndByATimeout) {
  const auto meets = [] {
    try {
      replicate(
          32, [](const Group& group) { group.barrier(); }, std::chrono::milliseconds(0));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kTimeout) << error.what();
      return false;
    }
    return true;
  };
  int tries = 1;
  while (meets() && tries < 100) ++tries;
  EXPECT_LT(tries, 100);
}

}  // namespace replicate_test
}  // namespace weft::comm
