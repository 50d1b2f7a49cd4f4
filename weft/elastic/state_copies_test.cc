#include "weft/elastic/state_copies.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/backend.h"
#include "weft/comm/replicate.h"

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

void expect_state(const Recovered& state, std::int64_t step, int ranks) {
  EXPECT_EQ(state.step, step);
  EXPECT_EQ(state.reader.state().at("step"), std::to_string(step));
  const at::Tensor weight = state.reader.read("model", "weight");
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_EQ(weight[2 * rank][4].item<double>(), static_cast<double>(10 * step + rank));
}

TEST(StateCopies, GiveTheNewestStateToARankThatHasNone) {
  replicate(3, [](const Group& group) {
    StateCopies copies(group);
    for (const std::int64_t step : {4, 5, 6}) {
      copies.take(shards_at(step, group.rank(), 3));
      group.barrier();
    }
    const auto state = newest_state(group, group.rank() == 1 ? nullptr : &copies);
    ASSERT_TRUE(state);
    expect_state(*state, 6, 3);
    group.barrier();  // until all have read this rank's copies
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
    const auto state = newest_state(group, &copies);
    ASSERT_TRUE(state);
    expect_state(*state, 5, 3);
    group.barrier();
  });
}

// The same ranks without shared memory.
Group over_tcp(const Group& threads, const c10::intrusive_ptr<c10d::HashStore>& store) {
  const comm::BackendOptions options{.transport = comm::Transport::kTcp,
                                     .timeout = std::chrono::seconds(60)};
  return Group(comm::make_backend(store, threads.rank(), threads.size(), options), "tcp");
}

// Ranks without shared memory keep each other's copies.
TEST(StateCopies, OfRanksOverTcpSurviveTheLossOfAnyOne) {
  for (int lost = 0; lost < 3; ++lost) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    replicate(3, [&](const Group& threads) {
      const Group group = over_tcp(threads, store);
      StateCopies copies(group);
      for (const std::int64_t step : {1, 2, 3}) {
        copies.take(shards_at(step, group.rank(), 3));
        group.barrier();
      }
      const auto state = newest_state(group, group.rank() == lost ? nullptr : &copies);
      ASSERT_TRUE(state);
      expect_state(*state, 3, 3);
    });
  }
}

TEST(StateCopies, SayWhichPartsAreLost) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  replicate(4, [&](const Group& threads) {
    const Group group = over_tcp(threads, store);
    StateCopies copies(group);
    copies.take(shards_at(7, group.rank(), 4));
    group.barrier();
    // Rank 2 keeps the copy of rank 1, so both places of rank 1's part are lost.
    const bool has_none = group.rank() == 1 || group.rank() == 2;
    std::string missing;
    EXPECT_FALSE(newest_state(group, has_none ? nullptr : &copies, &missing));
    EXPECT_EQ(missing, "the parts of ranks 1 of step 7");
  });
}

TEST(StateCopies, OfNobodyAreNoState) {
  replicate(2, [](const Group& group) {
    std::string missing;
    EXPECT_FALSE(newest_state(group, nullptr, &missing));
    EXPECT_EQ(missing, "");
  });
}

}  // namespace
}  // namespace weft::elastic
