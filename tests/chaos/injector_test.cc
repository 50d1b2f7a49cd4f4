#include "tests/chaos/internal/injector.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/chaos/internal/sha256.h"
#include "weft/launch/process.h"

namespace weft::chaos::internal {
namespace injector_test {

using std::chrono::milliseconds;

const Clock::time_point kStart{};

observe::StepTime finished(std::int64_t step, std::int64_t group = 0, int rank = 0) {
  return {.rank = rank, .ranks = 2, .group = group, .step = step};
}

TEST(Trigger, FiresAfterItsStepAndDelay) {
  Trigger trigger(false);
  const Fault fault{.after_step = 5, .delay_s = 0.02};
  EXPECT_FALSE(trigger.due(fault));
  trigger.on_step(finished(4), 0, kStart + milliseconds(40));
  EXPECT_FALSE(trigger.due(fault));
  trigger.on_step(finished(5), 0, kStart + milliseconds(50));
  trigger.on_step(finished(9), 0, kStart + milliseconds(90));
  EXPECT_EQ(trigger.due(fault), kStart + milliseconds(70));
}

TEST(Trigger, WaitsUntilAllRanksOfALaterGroupHaveFinishedAStep) {
  const Fault fault{.after_step = 5};
  for (const bool overlap : {false, true}) {
    Trigger trigger(overlap);
    trigger.on_step(finished(5), 0, kStart + milliseconds(50));
    trigger.on_loss();
    EXPECT_EQ(trigger.due(fault).has_value(), overlap);
    trigger.on_step(finished(6), 0, kStart + milliseconds(60));  // the old group's last step
    auto ready = finished(4, 1);
    ready.ready = true;
    trigger.on_step(ready, 0, kStart + milliseconds(400));
    trigger.on_step(finished(5, 1, 0), 0, kStart + milliseconds(500));
    EXPECT_EQ(trigger.due(fault).has_value(), overlap);
    trigger.on_step(finished(5, 1, 1), 0, kStart + milliseconds(510));
    EXPECT_EQ(trigger.due(fault), kStart + milliseconds(overlap ? 50 : 510));
  }
}

TEST(Trigger, CountsARandomTimeFromTheFaultBefore) {
  Trigger trigger(false);
  const Fault fault{.delay_s = 0.2};
  EXPECT_FALSE(trigger.due(fault));
  trigger.on_step(finished(1), 0, kStart + milliseconds(10));
  EXPECT_EQ(trigger.due(fault), kStart + milliseconds(210));
  trigger.on_fault(kStart + milliseconds(300));
  EXPECT_EQ(trigger.due(fault), kStart + milliseconds(500));
}

TEST(Victim, IsNotAnotherProcessOfTheSameNumber) {
  launch::Process process({.call = [] {
    for (;;) ::pause();
    return 0;
  }});
  const auto id = identify(process.pid());
  ASSERT_TRUE(id);
  const ProcessId older{id->pid, id->start - 1};
  EXPECT_FALSE(Victim::open(older));
  const auto victim = Victim::open(*id);
  ASSERT_TRUE(victim);
  EXPECT_TRUE(victim->send(SIGSTOP));
  while (victim->state() != 'T') ::usleep(100);
  EXPECT_NE(describe_process(id->pid).find(" T, in "), std::string::npos);
  EXPECT_FALSE(victim->has_ended());
  EXPECT_TRUE(victim->send(SIGKILL));
  process.wait(Deadline::in(std::chrono::seconds(5)));
  EXPECT_TRUE(victim->has_ended());
  EXPECT_EQ(victim->state(), 0);
  EXPECT_FALSE(victim->send(SIGKILL));
  EXPECT_FALSE(Victim::open(*id));
}

// FIPS 180-4's examples.
TEST(Sha256, HasTheStandardsDigests) {
  Sha256 abc, nothing;
  abc.add("a");
  abc.add("bc");
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(nothing.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace injector_test
}  // namespace weft::chaos::internal
