#include "weft/launch/internal/store_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "weft/base/deadline.h"

namespace weft::launch::internal {
namespace store_process_test {

using std::chrono::seconds;

void signal_process(const StoreProcess& store, int number) {
  ::syscall(SYS_pidfd_send_signal, store.pidfd(), number, nullptr, 0);
}

// A launcher that waited for it would answer no signal.
TEST(StoreProcess, DoesNotLetTheLauncherWaitWhileItIsStoppedAndLosesNoMessage) {
  ProcessOptions waiting;
  waiting.call = [] { return ::pause(); };
  Process guarded(waiting);
  ProcessOptions launching;
  launching.call = [group = guarded.pid()] {
    StoreProcess store({});
    signal_process(store, SIGSTOP);
    for (int message = 0; message < 100'000 && !store.has_unsent(); ++message)
      store.forget(1 << 30);  // no group has this number
    store.guard(group);
    if (!store.has_unsent()) return 1;
    signal_process(store, SIGCONT);
    for (const Deadline deadline = Deadline::in(seconds(10)); store.has_unsent();) {
      if (store.poll() || deadline.passed()) return 2;
      ::usleep(500);
    }
    ::_exit(0);  // without notice: the store process then kills the guarded groups
  };
  Process launcher(launching);
  const auto end = launcher.wait(Deadline::in(seconds(20)));
  ASSERT_TRUE(end) << "it waits for the store process";
  EXPECT_EQ(end->describe(), "exit code 0");
  const auto killed = guarded.wait(Deadline::in(seconds(10)));
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->describe(), "SIGKILL (signal 9)");
}

}  // namespace store_process_test
}  // namespace weft::launch::internal
