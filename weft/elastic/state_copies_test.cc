#include "weft/elastic/state_copies.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/elastic/newest_state.h"
#include "weft/net/memory/heap.h"
#include "weft/net/shm/shm.h"

namespace weft::elastic {
namespace {

// Each rank has two rows of a tensor, whose values are those of the step.
checkpoint::Shards shards_at(std::int64_t step, int rank, int ranks) {
  checkpoint::Shards shards;
  shards.step = step;
  shards.state = {{"step", std::to_string(step)}};
  const at::Tensor rows = at::full({2, 5}, static_cast<double>(10 * step + rank), at::kDouble);
  shards.parts["model"] = {{"weight", {2 * ranks, 5}, {2 * rank, 0}, rows}};
  return shards;
}

// `held`: null on a newcomer. It outlives the result.
Brought brought(const StateCopies* held) {
  if (held == nullptr) return {};
  return {.copies = {std::shared_ptr<const StateCopies>(std::shared_ptr<void>(), held)}};
}

// Reads the whole newest state of the group.
void expect_state(const Group& group, const Brought& mine, std::int64_t step) {
  int used = 0;
  use_newest_state(group, mine, [&](const std::optional<Recovered>& state, const std::string&) {
    ASSERT_TRUE(state);
    EXPECT_EQ(state->step, step);
    EXPECT_EQ(state->reader.state().at("step"), std::to_string(step));
    const at::Tensor weight = state->reader.read("model", "weight");
    for (int rank = 0; rank < group.size(); ++rank)
      EXPECT_EQ(weight[2 * rank][4].item<double>(), static_cast<double>(10 * step + rank));
    ++used;
  });
  EXPECT_EQ(used, 1);
}

// What the newest state lacks.
std::string missing_in(const Group& group, const StateCopies* held) {
  std::string what = "the state is whole";
  use_newest_state(group, brought(held),
                   [&](const std::optional<Recovered>& state, const std::string& missing) {
                     if (!state) what = missing;
                   });
  return what;
}

TEST(StateCopies, GiveTheNewestStateToARankThatHasNone) {
  replicate(3, [](const Group& group) {
    StateCopies copies(group);
    for (const std::int64_t step : {4, 5, 6}) {
      copies.take(shards_at(step, group.rank(), 3));
      group.barrier();
    }
    expect_state(group, brought(group.rank() == 1 ? nullptr : &copies), 6);
  });
}

TEST(StateCopies, FallBackToTheLastStepThatAllRanksHaveCopied) {
  replicate(3, [](const Group& group) {
    StateCopies copies(group);
    for (const std::int64_t step : {4, 5}) {
      copies.take(shards_at(step, group.rank(), 3));
      group.barrier();
    }
    if (group.rank() != 2) copies.take(shards_at(6, group.rank(), 3));
    group.barrier();
    expect_state(group, brought(&copies), 5);
  });
}

// Ranks without shared memory keep each other's copies.
TEST(StateCopies, OfRanksOverTcpSurviveTheLossOfAnyOne) {
  for (int lost = 0; lost < 3; ++lost) {
    comm::replicate_over_tcp(3, [&](const Group& group) {
      StateCopies copies(group);
      for (const std::int64_t step : {1, 2, 3}) {
        copies.take(shards_at(step, group.rank(), 3));
        group.barrier();
      }
      expect_state(group, brought(group.rank() == lost ? nullptr : &copies), 3);
    });
  }
}

TEST(StateCopies, SayWhichPartsAreLost) {
  comm::replicate_over_tcp(4, [&](const Group& group) {
    StateCopies copies(group);
    copies.take(shards_at(7, group.rank(), 4));
    group.barrier();
    // Rank 2 keeps the copy of rank 1, so both places of rank 1's part are lost.
    const bool has_none = group.rank() == 1 || group.rank() == 2;
    EXPECT_EQ(missing_in(group, has_none ? nullptr : &copies), "the parts of ranks 1 of step 7");
  });
}

// Ranks 1 to 3 leave. Part 1 is on ranks 1 and 2, part 2 on ranks 2 and 3.
TEST(StateCopies, OfRanksThatLeaveAreHandedOverIfNobodyElseHasThem) {
  comm::replicate_over_tcp(4, [&](const Group& group) {
    StateCopies copies(group);
    for (const std::int64_t step : {6, 7}) {
      copies.take(shards_at(step, group.rank(), 4));
      group.barrier();
    }
    Brought mine = brought(&copies);
    hand_over(group, 1, mine);
    std::vector<int> owners;
    for (const auto& copy : mine.handed_over) owners.push_back(copy.what.owner);
    EXPECT_EQ(owners, group.rank() == 0 ? (std::vector{1, 2}) : std::vector<int>{});
    expect_state(group, group.rank() == 0 ? mine : Brought{}, 7);
  });
}

TEST(StateCopies, ThatRanksWhichStayHaveAreNotHandedOver) {
  replicate(3, [](const Group& group) {
    StateCopies copies(group);
    copies.take(shards_at(3, group.rank(), 3));
    group.barrier();
    Brought mine = brought(&copies);
    hand_over(group, 1, mine);
    EXPECT_TRUE(mine.handed_over.empty());
    Brought none;
    hand_over(group, 1, none);
    EXPECT_TRUE(none.handed_over.empty());
  });
}

TEST(StateCopies, OfNobodyAreNoState) {
  replicate(2, [](const Group& group) { EXPECT_EQ(missing_in(group, nullptr), ""); });
}

// Four ranks of which rank 1 is new: its rows are a quarter of the state. It needs memory for these
// rows alone, and nobody sends more than these rows and the headers. The reads go through a group
// of their own: `rings` are the bytes of its rings for messages, which rank 0 takes.
int load_as_newcomer(const Group& group, std::size_t rings) {
  constexpr std::int64_t kRows = 3000, kBytes = kRows * 100 * 8, kSmall = std::int64_t{1} << 20;
  StateCopies copies(group);
  const auto part_of = [&](const at::Tensor& rows) {
    return checkpoint::Slice{"weight", {4 * kRows, 100}, {kRows * group.rank(), 0}, rows};
  };
  const at::Tensor rows = at::full({kRows, 100}, 1.0 + group.rank(), at::kDouble);
  copies.take({.step = 9, .parts = {{"model", {part_of(rows)}}}, .state = {}});
  group.barrier();
  const auto sent_before = group.traffic().sent_bytes;
  const auto peak_before = net::process_heap()->stats().peak_bytes;
  bool good = false;
  const bool is_new = group.rank() == 1;
  use_newest_state(group, brought(is_new ? nullptr : &copies),
                   [&](const std::optional<Recovered>& state, const std::string&) {
                     const at::Tensor mine = at::zeros({kRows, 100}, at::kDouble);
                     state->reader.fill({part_of(mine)});
                     good = at::equal(mine, rows);
                   });
  const auto more = net::process_heap()->stats().peak_bytes - peak_before;
  const std::int64_t serving = is_new ? 0 : checkpoint::Reader::kFetchBytes;  // a message's copy
  at::Tensor sent = at::scalar_tensor(
      static_cast<std::int64_t>(group.traffic().sent_bytes - sent_before), at::kLong);
  group.all_reduce(sent);
  const auto all = sent.item<std::int64_t>();
  const auto most = static_cast<std::uint64_t>(kBytes + kSmall + serving);
  return (good ? 0 : 1) + (all > kBytes && all < kBytes + kSmall ? 0 : 2) +
         (more < most + (group.rank() == 0 ? rings : 0) ? 0 : 4);
}

TEST(NewestState, SendsANewcomerOnlyTheRowsThatItReadsAndNeedsNoMoreMemory) {
  const auto load = [](const std::string& transport, std::size_t rings) {
    return comm::fork_ranks(4, transport,
                            [=](const Group& group) { return load_as_newcomer(group, rings); });
  };
  EXPECT_EQ(load("shm", net::shm_region_bytes(4)), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(load("tcp", 0), (std::vector<int>{0, 0, 0, 0}));
}

// A rank that fails while others read its copies ends their reads.
TEST(NewestState, EndsOnAllRanksIfOneFails) {
  replicate(3, [](const Group& group) {
    StateCopies copies(group);
    copies.take(shards_at(4, group.rank(), 3));
    group.barrier();
    const auto use = [&](const std::optional<Recovered>& state, const std::string&) {
      if (group.rank() == 0) throw Error(Errc::kPeerLost, "a rank is lost");
      while (true) state->reader.read("model", "weight");
    };
    if (group.rank() == 2) {  // it reads its own memory, and waits for the others
      EXPECT_THROW(use_newest_state(group, brought(&copies),
                                    [&](const auto&, const auto&) { group.barrier(); }),
                   Error);
    } else {
      EXPECT_THROW(use_newest_state(group, brought(group.rank() == 1 ? nullptr : &copies), use),
                   Error);
      group.abort();
    }
  });
}

}  // namespace
}  // namespace weft::elastic
