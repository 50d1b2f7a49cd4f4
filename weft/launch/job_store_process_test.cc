#include "weft/launch/internal/job_store_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "weft/base/testing/refusal.h"

namespace weft::launch {
namespace job_store_process_test {

using internal::JobStoreProcess;
using namespace std::chrono_literals;

JobStoreProcess::Options options() {
  JobStoreProcess::Options options;
  options.job = "test";
  options.program = WEFT_STORE_PROGRAM;
  return options;
}

TEST(JobStoreProcess, IsStartedAgainAndKeepsAllData) {
  JobStoreProcess store(options());
  store::Client client(store.socket());
  client.set({"a", "1"}, Deadline::in(10s));
  const pid_t first = store.pid();
  ::kill(first, SIGKILL);
  // The process ends with the thread that started it.
  std::jthread launcher([&](const std::stop_token& done) {
    while (!done.stop_requested()) {
      store.tend(Deadline::Clock::now());
      std::this_thread::sleep_for(1ms);
    }
  });
  EXPECT_EQ(client.get("a", Deadline::in(10s)).value().bytes, "1");
  launcher.request_stop();
  launcher.join();
  EXPECT_NE(store.pid(), first);
}

TEST(JobStoreProcess, WaitsLongerAfterEachFailureInARow) {
  EXPECT_EQ(internal::restart_pause(1), 0ms);
  EXPECT_EQ(internal::restart_pause(2), 50ms);
  EXPECT_EQ(internal::restart_pause(3), 100ms);
  EXPECT_EQ(internal::restart_pause(100), 2s);
}

TEST(JobStoreProcess, EndsWithItsOwner) {
  pid_t pid = 0;
  {
    const JobStoreProcess store(options());
    pid = store.pid();
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST(JobStoreProcess, NamesAMissingProgram) {
  JobStoreProcess::Options without = options();
  without.program = "";  // beside this test, where it does not lie
  expect_refused([&] { JobStoreProcess store(std::move(without)); }, Errc::kUnavailable,
                 "weft_store is missing");
}

}  // namespace job_store_process_test
}  // namespace weft::launch
