// Asynchronous messages: deadlines, and receives from any rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/comm/group.h"
#include "weft/comm/internal/named_receives.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace messages_test {

using namespace std::chrono_literals;

constexpr auto kTimeout = 250ms;
const std::vector<int> kTwo(2, 0), kThree(3, 0);

BackendOptions over(const char* transport, std::chrono::milliseconds timeout = 20s) {
  return {.transport = parse_transport(transport), .timeout = timeout, .connect_timeout = 20s};
}

Group::Work receive(const Group& group, const at::Tensor& into, int peer, int tag) {
  std::vector<at::Tensor> tensors{into};
  return peer < 0 ? group.backend().recvAnysource(tensors, tag)
                  : group.backend().recv(tensors, peer, tag);
}

int posts_early(const Group& group) {
  at::Tensor value = at::ones({3});
  group.barrier();
  if (group.rank() == 0) {
    std::this_thread::sleep_for(2 * kTimeout);
    group.send(value, 1, 7);
  } else {
    const at::Tensor into = at::zeros({3});
    const auto work = receive(group, into, 0, 7);
    std::this_thread::sleep_for(2 * kTimeout);
    group.wait(work, "recv");
    if (!at::equal(into, value)) return 1;
  }
  group.barrier();
  return 0;
}

TEST(Messages, AReceiveMayBePostedLongerThanTheTimeoutBeforeItIsSent) {
  for (const char* transport : {"shm", "tcp"})
    EXPECT_EQ(fork_ranks(2, over(transport, kTimeout), posts_early), kTwo) << transport;
  replicate(
      2, [](const Group& group) { EXPECT_EQ(posts_early(group), 0); }, kTimeout);
}

std::string failure_of(const Group& group, const Group::Work& work, bool by_group) {
  try {
    by_group ? group.wait(work, "recv") : static_cast<void>(work->wait());
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// Rank 0 waits for the second of two messages that nobody sends.
int waits_in_vain(const Group& group, bool by_group) {
  const bool late = group.rank() == 0;
  if (!late) group.backend().setTimeout(20s);
  group.barrier();
  const auto first = receive(group, at::zeros({3}), 1 - group.rank(), 7);
  const auto second = receive(group, at::zeros({3}), 1 - group.rank(), 7);
  const auto start = Deadline::Clock::now();
  const std::string why = failure_of(group, second, by_group);
  const bool in_time = Deadline::Clock::now() - start < 5s;
  const bool good = late ? why.starts_with("Timeout") &&
                               why.find("the receive from rank 1 with tag 7") != std::string::npos
                         : why.find("rank 0") != std::string::npos;
  if (!good) std::fprintf(stderr, "rank %d: %s\n", group.rank(), why.c_str());
  return good && in_time && failure_of(group, first, by_group) != "none" ? 0 : 1;
}

TEST(Messages, AWaitLongerThanTheTimeoutEndsTheGroupOnAllRanksAndNamesTheMessage) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const bool by_group : {false, true}) {
      const auto body = [&](const Group& group) { return waits_in_vain(group, by_group); };
      EXPECT_EQ(fork_ranks(2, over(transport, kTimeout), body), kTwo) << transport << by_group;
    }
  }
}

TEST(Messages, ADestroyedGroupEndsPendingMessagesAtOnce) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(2, over(transport), [](const Group& test) {
      Group::Work pending;
      const auto start = Deadline::Clock::now();
      {
        const Group group = test.duplicate("short");
        pending = receive(group, at::zeros({3}), 1 - group.rank(), 1);
      }
      return failure_of(test, pending, false) != "none" && Deadline::Clock::now() - start < 5s ? 0
                                                                                               : 1;
    });
    EXPECT_EQ(codes, kTwo) << transport;
  }
}

// Rank 0 receives from any rank and, posted before or after, from another one; ranks 1 and 2 send
// their own number.
int mixes(const Group& group) {
  int wrong = 0;
  for (int round = 0; round < 40; ++round) {
    const bool named_first = round % 2 == 0;
    const at::Tensor mine = at::full({3}, 1.0 * group.rank());
    if (group.rank() > 0) group.send(mine, 0, 3);
    group.barrier();
    if (group.rank() == 0) {
      const at::Tensor named = at::zeros({3}), any = at::zeros({3});
      Group::Work one = named_first ? receive(group, named, 1, 3) : Group::Work();
      const auto other = receive(group, any, -1, 3);
      group.wait(other, "recv");
      const int from = other->sourceRank();
      if (!named_first) one = receive(group, named, 3 - from, 3);
      group.wait(one, "recv");
      wrong += any[0].item<double>() != from || named[0].item<double>() != 3 - from ||
               (named_first && from != 2);
    }
    group.barrier();
  }
  return wrong;
}

TEST(Messages, AReceiveFromAnyRankLeavesMessagesToReceivesFromTheirRank) {
  for (const char* transport : {"shm", "tcp"})
    EXPECT_EQ(fork_ranks(3, over(transport), mixes, {}, 60s), kThree) << transport;
  replicate(
      3, [](const Group& group) { EXPECT_EQ(mixes(group), 0); }, 20s);
}

TEST(NamedReceives, CountByTagAndPeerUntilTheyAreReleased) {
  internal::NamedReceives named;
  auto one = named.post(7, 1), two = named.post(7, 1);
  one.reset();
  EXPECT_TRUE(named.has(7, 1));
  EXPECT_FALSE(named.has(7, 2));
  EXPECT_FALSE(named.has(8, 1));
  two.reset();
  EXPECT_FALSE(named.has(7, 1));
}

}  // namespace messages_test
}  // namespace weft::comm
