#include "weft/launch/internal/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "weft/launch/internal/agent_process.h"
#include "weft/net/stream/local_socket.h"

namespace weft::launch::internal {
namespace {

// A signal's disposition, put back at the end.
class Disposition {
 public:
  Disposition(int number, sighandler_t handler)
      : number_(number), before_(::signal(number, handler)) {}
  ~Disposition() { ::signal(number_, before_); }

 private:
  const int number_;
  const sighandler_t before_;
};

TEST(StopSignals, AreReadInTurnAndBlockedMeanwhile) {
  StopSignals signals({SIGUSR1, SIGUSR2});
  EXPECT_FALSE(signals.next());
  ::raise(SIGUSR2);
  ASSERT_EQ(signals.next(), SIGUSR2);
  EXPECT_FALSE(signals.next());
}

TEST(StopSignals, LeaveAnIgnoredSignalIgnored) {
  const Disposition ignored(SIGUSR1, SIG_IGN);
  StopSignals signals({SIGUSR1, SIGUSR2});
  ::raise(SIGUSR1);
  EXPECT_FALSE(signals.next());
  ::raise(SIGUSR2);
  EXPECT_EQ(signals.next(), SIGUSR2);
}

TEST(StopSignals, DropWhatHasComeAtTheEnd) {
  static volatile sig_atomic_t handled = 0;
  const Disposition counted(SIGUSR2, [](int) { handled = 1; });
  {
    const StopSignals signals({SIGUSR2});
    ::raise(SIGUSR2);
  }
  EXPECT_EQ(handled, 0);
  ::raise(SIGUSR2);
  EXPECT_EQ(handled, 1);
}

// systemd and Slurm send them to all processes of a job.
TEST(StopSignals, DoNotEndTheAgentOfANode) {
  const auto store = net::internal::listen_locally("test");  // accepts connections, answers nothing
  const AgentProcess agent(AgentOptions{.socket = store.name});
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    ::kill(agent.pid(), number);
  ::kill(agent.pid(), SIGIO);  // ends it: of signals that wait, it takes the lowest first
  siginfo_t end{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(agent.pid()), &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_status, SIGIO);
}

}  // namespace
}  // namespace weft::launch::internal
