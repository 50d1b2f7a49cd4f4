// Bytes that a rank moves, compared with the volumes that the literature gives for each collective.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace traffic_test {

constexpr int kWorld = 3;
// Elements that cut into three parts of whole cache lines.
constexpr std::int64_t kElements = kWorld * 16 * 100;
constexpr std::uint64_t kBytes = kElements * sizeof(float);

// What `call` adds to the traffic of this rank.
template <class Call>
Traffic traffic_of(const Group& group, const Call& call) {
  const Traffic before = group.traffic();
  call();
  const Traffic after = group.traffic();
  return {after.sent_bytes - before.sent_bytes, after.shared_bytes - before.shared_bytes,
          after.is_complete};
}

// For ranks that are processes, whose expectations the test does not see.
bool is(const Traffic& seen, std::uint64_t sent, std::uint64_t shared) {
  if (seen.sent_bytes == sent && seen.shared_bytes == shared && seen.is_complete) return true;
  std::fprintf(
      stderr, "sent %llu bytes, expected %llu; shared %llu, expected %llu\n",
      static_cast<unsigned long long>(seen.sent_bytes), static_cast<unsigned long long>(sent),
      static_cast<unsigned long long>(seen.shared_bytes), static_cast<unsigned long long>(shared));
  return false;
}

std::vector<int> all_good() { return std::vector<int>(kWorld, 0); }

// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009: 2 n (W - 1) / W and n (W - 1).
TEST(Traffic, OverTcpIsTheVolumeOfTheRing) {
  const BackendOptions ring{.transport = Transport::kTcp, .algorithm = "ring"};
  const auto codes = fork_ranks(kWorld, ring, [](const Group& group) {
    at::Tensor mine = at::ones({kElements}), all = at::empty({kWorld * kElements});
    const auto reduced = traffic_of(group, [&] { group.all_reduce(mine); });
    if (!is(reduced, 2 * kBytes * (kWorld - 1) / kWorld, 0)) return 1;
    const auto gathered = traffic_of(group, [&] { group.all_gather(all, mine); });
    if (!is(gathered, kBytes * (kWorld - 1), 0)) return 2;
    const auto sent = traffic_of(group, [&] {
      if (group.rank() == 0) group.send(mine, 1);
      if (group.rank() == 1) group.recv(mine, 0);
    });
    return is(sent, group.rank() == 0 ? kBytes : 0, 0) ? 0 : 3;
  });
  EXPECT_EQ(codes, all_good());
}

TEST(Traffic, InSharedMemoryIsWhatARankReadsAndWritesOfItsPeersMemory) {
  const auto codes = fork_ranks(kWorld, "shm", [](const Group& group) {
    at::Tensor mine = at::ones({kElements}), all = at::empty({kWorld * kElements});
    std::vector<float> memory(kElements, 1.0f);  // peers cannot read it: it goes through copies
    at::Tensor hidden = at::from_blob(memory.data(), {kElements});
    at::Tensor small = at::ones({2});
    const std::uint64_t reduced = 2 * kBytes * (kWorld - 1) / kWorld;
    if (!is(traffic_of(group, [&] { group.all_reduce(mine); }), 0, reduced)) return 1;
    if (!is(traffic_of(group, [&] { group.all_reduce(hidden); }), 0, reduced)) return 2;
    // One rank sums up all of a small array.
    if (!is(traffic_of(group, [&] { group.all_reduce(small); }), 0, 8 * (kWorld - 1))) return 3;
    if (!is(traffic_of(group, [&] { group.all_gather(all, mine); }), 0, kBytes * (kWorld - 1)))
      return 4;
    if (!is(traffic_of(group, [&] { group.reduce_scatter(mine, all); }), 0, kBytes * (kWorld - 1)))
      return 5;
    if (!is(traffic_of(group, [&] { group.barrier(); }), 0, 0)) return 6;
    const auto sent = traffic_of(group, [&] {
      if (group.rank() == 0) group.send(mine, 1);
      if (group.rank() == 1) group.recv(mine, 0);
    });
    return is(sent, group.rank() == 0 ? kBytes : 0, 0) ? 0 : 7;
  });
  EXPECT_EQ(codes, all_good());
}

TEST(Traffic, OfAGroupCountsTheGroupsMadeFromItAlsoAfterTheirEnd) {
  const auto codes = fork_ranks(kWorld, "shm", [](const Group& group) {
    at::Tensor mine = at::ones({kElements});
    const bool inside = group.rank() < 2;
    const auto seen = traffic_of(group, [&] {
      if (!inside) return;
      const Group part = group.subgroup({0, 1}, "part");
      part.all_reduce(mine);
    });
    return is(seen, 0, inside ? kBytes : 0) ? 0 : 1;  // 2 n (2 - 1) / 2
  });
  EXPECT_EQ(codes, all_good());
}

TEST(Traffic, OfReplicasCountsTheGroupsMadeFromTheirsToo) {
  replicate(2, [](const Group& group) {
    at::Tensor mine = at::ones({kElements});
    const auto seen = traffic_of(group, [&] { group.duplicate("again").all_reduce(mine); });
    EXPECT_EQ(seen.shared_bytes, kBytes);
  });
}

// Two hosts of two ranks: each rank reduces half of the array over its host, all-reduces it with
// the other host (n / 2 bytes sent), and writes the result to both ranks of its host.
TEST(Traffic, OverTwoLevelsCountsMessagesAndSharedMemoryApart) {
  const auto codes = fork_ranks(
      4, "auto",
      [](const Group& group) {
        const std::int64_t elements = 64 << 10;
        const std::uint64_t bytes = elements * sizeof(float);
        at::Tensor mine = at::ones({elements});
        const auto seen = traffic_of(group, [&] { group.all_reduce(mine); });
        const bool sent = seen.sent_bytes >= bytes / 2 && seen.sent_bytes < bytes / 2 + 1024;
        return sent && seen.shared_bytes == bytes ? 0 : (is(seen, bytes / 2, bytes), 1);
      },
      {"a", "a", "b", "b"});
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

}  // namespace traffic_test
}  // namespace weft::comm
