// One rank ends its calls and lives on. The others must not wait for it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <new>

#include "weft/base/testing/in_time.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace abort_test {

using namespace std::chrono_literals;
using Hosts = std::vector<std::string>;

// A number that forked processes share.
class Shared {
 public:
  Shared() {
    void* const page = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    value_ = new (page) std::atomic<int>(0);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(std::atomic<int>)); }
  std::atomic<int>& operator*() const { return *value_; }

 private:
  std::atomic<int>* value_;
};

using Call = std::function<void(const Group&)>;

// Rank 0 calls `fails`; the others call `waits`, and must get kAborted with rank 0 and `why` within
// a second. Rank 0 ends only after them.
void expect_told(const std::string& transport, const Hosts& hosts, const Call& fails,
                 const Call& waits, const std::string& why) {
  constexpr int kWorld = 4;
  expect_within(1s, [&](SlowestRank& slowest) {
    const Shared ready, told;
    const auto wait_for_others = [&](const std::atomic<int>& count) {
      for (const auto end = Deadline::in(15s); count < kWorld - 1 && !end.passed();) sched_yield();
    };
    const auto rank = [&](const Group& group) {
      if (group.rank() == 0) {
        wait_for_others(*ready);
        fails(group);
        wait_for_others(*told);
        return 0;
      }
      ++*ready;
      const auto start = Deadline::Clock::now();
      int bad = 0;
      for (const Call& call : {waits, Call([](const Group& after) { after.barrier(); })}) {
        try {
          call(group);
          bad = 1;
        } catch (const Error& error) {
          slowest.report_since(start);
          const std::string what = error.what();
          if (error.code() == Errc::kAborted && what.find("rank 0") != std::string::npos &&
              what.find(why) != std::string::npos)
            continue;
          std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
          bad = 2;
        }
      }
      ++*told;
      return bad;
    };
    EXPECT_EQ(fork_ranks(kWorld, transport, rank, hosts), std::vector<int>(kWorld, 0))
        << transport << " on " << hosts.size() << " named hosts";
  });
}

void give_up(const Group& group) { group.abort(Error(Errc::kUnavailable, "the disk is full")); }

void reduce_small(const Group& group) {
  at::Tensor t = at::ones({3});
  group.all_reduce(t);
}

void receive_from_the_next(const Group& group) {
  at::Tensor t = at::ones({3});
  group.recv(t, (group.rank() + 1) % group.size());
}

TEST(GroupAbortTiming, EndsTheCallsOfAllRanksWithinASecond) {
  const Call large = [](const Group& group) {
    at::Tensor t = at::ones({300'000});
    group.all_reduce(t);
  };
  for (const auto& [transport, hosts] : std::vector<std::pair<std::string, Hosts>>{
           {"auto", {}}, {"tcp", {}}, {"auto", {"a", "a", "b", "b"}}}) {
    for (const Call& waits : {Call(reduce_small), large, Call(receive_from_the_next)})
      expect_told(transport, hosts, give_up, waits, "the disk is full");
  }
}

TEST(GroupAbortTiming, EndsTheCallsWithinAHostAndBetweenHosts) {
  const Hosts hosts{"a", "a", "b", "b"};
  const Call in_host = [](const Group& group) { receive_from_the_next(group.split()->local); };
  const Call across = [](const Group& group) { receive_from_the_next(*group.split()->across); };
  for (const Call& waits : {in_host, across})
    expect_told("auto", hosts, give_up, waits, "the disk is full");
  // Of a group within a host: the others may be in calls of the whole group.
  const Call part = [](const Group& group) { give_up(group.split()->local); };
  expect_told("auto", hosts, part, reduce_small, "the disk is full");
}

// The copy of these elements needs more memory than a process can have.
constexpr std::int64_t kTooMany = std::int64_t{1} << 46;

TEST(GroupAbortTiming, MissingMemoryInsideACollectiveIsToldWithinASecond) {
  const Call without_memory = [](const Group& group) {
    float number = 1;
    at::Tensor t = at::from_blob(&number, {kTooMany}, {2}, at::kFloat);
    EXPECT_THROW(group.all_reduce(t), c10::Error);
  };
  for (const char* transport : {"auto", "tcp"})
    expect_told(transport, {}, without_memory, reduce_small, "out of memory");
  expect_told("auto", {"a", "a", "b", "b"}, without_memory, reduce_small, "out of memory");
}

TEST(GroupAbortTiming, MissingMemoryForTheResultsOfAGatherIsToldWithinASecond) {
  const Call without_memory = [](const Group& group) {
    EXPECT_THROW(group.gather(at::zeros({1}).expand({kTooMany})), c10::Error);
  };
  const Call gather = [](const Group& group) {
    group.gather(at::zeros({3}));
    group.barrier();
  };
  expect_told("tcp", {}, without_memory, gather, "out of memory");
}

}  // namespace abort_test
}  // namespace weft::comm
