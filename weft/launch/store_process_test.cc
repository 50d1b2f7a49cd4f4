#include "weft/launch/internal/store_process.h"

#include <gtest/gtest.h>
#include <poll.h>
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

// systemd and Slurm send them to all processes of a job, and the ranks need the store to save.
TEST(StoreProcess, IgnoresRequestsToStop) {
  StoreProcess store({});
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    signal_process(store, number);
  signal_process(store, SIGIO);  // ends it: of signals that wait, it takes the lowest first
  pollfd ended{store.pidfd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, 10'000), 1);
  EXPECT_EQ(store.poll(), std::optional(ExitStatus{true, SIGIO}));
}

}  // namespace store_process_test
}  // namespace weft::launch::internal
