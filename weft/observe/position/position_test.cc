#include "weft/observe/position/position.h"
#include "weft/base/error.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "weft/base/error.h"

namespace weft::observe::position_test {
namespace {

// Runs `body` in a fork, as local rank `local` of the page, and expects that it ends with 0.
void as_rank(const RankPage& page, int local, const std::function<void()>& body) {
  const int fd = ::dup(page.fd());  // not closed on exec, as the launcher passes it
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("WEFT_PAGE_FD", std::to_string(fd).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(local).c_str(), 1);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(fd);
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

Operation operation_of(const RankPage& page, int local) {
  return page.record(local).slots[0].operation.read();
}

Operation all_reduce(std::uint64_t number) {
  return {.name = "all_reduce", .group = "world", .number = number, .bytes = 4096};
}

TEST(Position, TheLauncherReadsWhereARankIsAlsoAfterItsDeath) {
  const auto page = RankPage::make(2, 4, 8);
  as_rank(page, 1, [] {
    set_step(7);
    set_activity(Activity::kBackward);
    const OperationScope scope(all_reduce(12));
    WaitScope wait("meet", 4);
    wait.set_peer(6);
    ::_exit(0);  // in the middle of the wait
  });
  const Standing standing = page.record(1).standing.read();
  EXPECT_EQ(standing.rank, 5);
  EXPECT_EQ(standing.step, 7);
  EXPECT_EQ(standing.activity, Activity::kBackward);
  EXPECT_LE(standing.since, monotonic_ns());
  const Operation operation = operation_of(page, 1);
  EXPECT_TRUE(operation.runs());
  EXPECT_EQ(operation.name.str(), "all_reduce");
  EXPECT_EQ(operation.group.str(), "world");
  EXPECT_EQ(operation.number, 12u);
  EXPECT_EQ(operation.bytes, 4096u);
  EXPECT_EQ(operation.peer, 6);
  EXPECT_GE(operation.waits_since, standing.since);
  EXPECT_EQ(page.record(0).standing.read().pid, 0);  // nobody has written it
}

// On nodes that meet, the launcher learns the numbers after it has made the page.
TEST(Position, ARankHasTheNumberThatTheLauncherWroteBeforeItStarted) {
  const auto page = RankPage::make(2, -1, 0);
  page.clear(1, 6);
  as_rank(page, 1, [] { set_step(3); });
  EXPECT_EQ(page.record(1).standing.read().rank, 6);
  EXPECT_EQ(page.record(1).standing.read().step, 3);
}

TEST(Position, AnOperationThatHasEndedIsTheLastOne) {
  const auto page = RankPage::make(1, 0, 1);
  as_rank(page, 0, [] {
    const OperationScope outer(all_reduce(3));
    const OperationScope inner({.name = "broadcast", .group = "tp", .number = 9});
    { const WaitScope wait("meet", 1); }
  });
  EXPECT_FALSE(operation_of(page, 0).runs() && operation_of(page, 0).waits());
  as_rank(page, 0, [] { const OperationScope scope(all_reduce(3)); });
  EXPECT_FALSE(operation_of(page, 0).runs());
  EXPECT_EQ(operation_of(page, 0).name.str(), "all_reduce");
  EXPECT_EQ(operation_of(page, 0).number, 3u);
}

TEST(Position, AWaitOutsideOfAnOperationHasItsOwnName) {
  const auto page = RankPage::make(1, 0, 2);
  as_rank(page, 0, [] {
    const WaitScope outer("pipeline", 1);
    const WaitScope inner("meet", 0);
    ::_exit(0);
  });
  EXPECT_EQ(operation_of(page, 0).name.str(), "pipeline");
  EXPECT_TRUE(operation_of(page, 0).waits());
}

TEST(Position, EachThreadHasASlotAndGivesItBack) {
  const auto page = RankPage::make(1, 0, 1);
  as_rank(page, 0, [] {
    const OperationScope main(all_reduce(1));
    for (int i = 0; i < 3 * RankRecord::kSlots; ++i) {
      std::thread([] { const OperationScope other({.name = "send"}); }).join();
    }
    std::thread([] {
      const OperationScope other({.name = "recv", .number = 5});
      ::_exit(0);
    }).join();
  });
  EXPECT_EQ(page.record(0).slots[0].operation.read().name.str(), "all_reduce");
  EXPECT_EQ(page.record(0).slots[1].operation.read().name.str(), "recv");
  EXPECT_EQ(page.record(0).slots[1].operation.read().number, 5u);
}

TEST(Position, TheTimeOfWaitsAddsUpOnceOnTheThreadThatWaits) {
  const auto page = RankPage::make(1, 0, 1);
  as_rank(page, 0, [] {
    const std::int64_t before = monotonic_ns();
    {
      const WaitScope outer("a", 0);
      const WaitScope inner("b", 0);
      const std::int64_t begun = monotonic_ns();
      while (monotonic_ns() - begun < 2'000'000) {
      }
    }
    const std::int64_t took = monotonic_ns() - before;
    EXPECT_GE(waited_ns(), 2'000'000);
    EXPECT_LE(waited_ns(), took);
    std::thread([] { EXPECT_EQ(waited_ns(), 0); }).join();
  });
}

TEST(Position, WaitsOfAnotherThreadForThisOneCountHere) {
  const auto page = RankPage::make(1, 0, 1);
  as_rank(page, 0, [] {
    const WaitAccount here = WaitAccount::of_this_thread();
    const auto wait = [&] {
      const WaitsFor waits(here);
      const WaitsFor again(here);  // no effect
      const WaitScope scope("a", 0);
      const std::int64_t begun = monotonic_ns();
      while (monotonic_ns() - begun < 1'000'000) {
      }
    };
    std::int64_t there = 0;
    std::thread([&] {
      wait();
      there = waited_ns();
    }).join();
    EXPECT_GE(there, 1'000'000);
    EXPECT_EQ(waited_ns(), there);
    const std::int64_t begun = monotonic_ns();
    wait();  // counts once
    EXPECT_LE(waited_ns() - there, monotonic_ns() - begun);
    std::thread([] {
      const WaitsFor nobody{WaitAccount()};
      EXPECT_EQ(waited_ns(), 0);
    }).join();
  });
}

TEST(Position, AForkOfARankDoesNotWriteItsRecord) {
  const auto page = RankPage::make(1, 0, 1);
  as_rank(page, 0, [&page] {
    set_step(5);
    const OperationScope scope(all_reduce(1));
    const std::uint64_t before = page.record(0).heartbeat();
    const pid_t child = ::fork();
    if (child == 0) {
      set_step(6);
      { const OperationScope other({.name = "send"}); }
      std::thread([] { const OperationScope other({.name = "recv"}); }).join();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(page.record(0).heartbeat(), before);
    EXPECT_EQ(page.record(0).standing.read().step, 5);
    EXPECT_EQ(page.record(0).slots[0].thread.load(), ::getpid());
  });
}

TEST(Position, ADescriptorThatIsNoPageIsLeftAlone) {
  const int file = ::open("/dev/null", O_RDWR);
  const int memory = ::memfd_create("other", MFD_ALLOW_SEALING);
  for (const int fd : {file, memory, 12345}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("WEFT_PAGE_FD", std::to_string(fd).c_str(), 1);
      ::setenv("LOCAL_RANK", "0", 1);
      set_step(3);
      const bool kept = fd == 12345 || (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
      ::_exit(kept && page_header().ranks == 1 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << fd;
  }
  ::close(file);
  ::close(memory);
}

TEST(Position, TheLaunchersRequestsAndRank0sRunFolderAreSeenByTheOther) {
  const auto page = RankPage::make(2, 0, 2);
  EXPECT_EQ(page.run_folder(), "");
  page.header().wanted_ranks = 6;
  page.header().requests.fetch_or(PageHeader::kCheckpoint);
  page.header().generation.fetch_add(1);
  as_rank(page, 1, [] {
    EXPECT_EQ(page_header().wanted_ranks.load(std::memory_order_relaxed), 6);
    EXPECT_EQ(page_header().requests.load(), PageHeader::kCheckpoint);
    EXPECT_EQ(page_header().generation.load(), 1u);
    tell_run_folder("/runs/a");
    tell_run_folder(std::string(5000, 'x'));
  });
  EXPECT_EQ(page.run_folder(), "/runs/a");
}

TEST(Position, AnotherProcessFindsThePageByTheProcessThatHoldsIt) {
  const auto page = RankPage::make(3, 2, 9);
  as_rank(page, 2, [] { set_step(4); });
  const auto found = RankPage::of_process(::getpid());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->ranks(), 3);
  const auto larger = RankPage::make(1, 0, 1, 4);
  larger.set_ranks(4);
  EXPECT_EQ(larger.ranks(), 4);
  EXPECT_THROW(larger.set_ranks(5), weft::Error);
  EXPECT_EQ(found->record(0).standing.read().rank, 2);
  EXPECT_EQ(found->header().elsewhere, 6);
  EXPECT_EQ(found->record(2).standing.read().step, 4);
  EXPECT_FALSE(RankPage::of_process(1 << 30).has_value());
}

}  // namespace
}  // namespace weft::observe::position_test
