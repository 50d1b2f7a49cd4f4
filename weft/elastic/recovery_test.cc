// Tests of recoveries in processes. tests/faults has those in which ranks are killed.
#include "weft/elastic/recovery.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/testing/processes.h"
#include "weft/elastic/run.h"
#include "weft/net/memory/heap.h"
#include "weft/rank_link/messages.h"

namespace weft::elastic {
namespace {

using namespace std::chrono_literals;
using comm::Me;
using comm::Processes;
using comm::Transport;

void expect(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// The job's first group, whose lost ranks the launcher replaces.
Group elastic_group(const Me& me, int ranks, Transport transport = Transport::kAuto) {
  ::setenv("WEFT_ELASTIC", "1", 1);
  return comm::form_group(me.store, me.id, ranks, {.transport = transport, .timeout = 20s});
}

// A program whose state is the number of its step.
struct Program {
  explicit Program(const Group& world) { copy(world, 5); }

  void copy(const Group& world, std::int64_t step) {
    copies = std::make_shared<StateCopies>(world);
    const std::string name = "rank" + std::to_string(world.rank());
    const auto slice = checkpoint::whole_slice(name, at::full({3}, step));
    copies->take({.step = step, .parts = {{"model", {slice}}}, .state = {}});
  }
  std::int64_t enter(const Group& world, const Brought& brought) {
    std::set<std::uint32_t> epochs;
    for (const auto& copy : brought.readable()) epochs.insert(copy.what.epoch);
    brought_epochs.push_back(epochs.size());
    std::int64_t step = -1;
    use_newest_state(world, brought,
                     [&](const std::optional<Recovered>& state, const std::string&) {
                       expect(state.has_value(), "no whole state is left");
                       step = state->step;
                     });
    copy(world, step);
    return step;
  }
  Recovery::Steps steps(std::function<std::int64_t(const Brought&)> enter) {
    return {.copies = [this] { return copies; },
            .leave = [this] { copies.reset(); },
            .enter = std::move(enter)};
  }

  std::shared_ptr<StateCopies> copies;
  std::vector<std::size_t> brought_epochs;  // at each entry: groups of whose copies it knows
};

const Error kLost(Errc::kPeerLost, "a rank is lost");

// The launcher's wish is there before the first copy.
int shrinks_before_the_first_step(const Me& me) {
  auto [launcher, mine] = rank_link::Link::make();
  ::setenv(rank_link::kLinkVariable, std::to_string(mine.fd()).c_str(), 1);
  rank_link::tell(launcher, rank_link::RanksWanted{.number = 1, .newcomers = {}});
  std::int64_t step = 0;
  int calls = 0;
  State state;
  state.add("step", step);
  RunOptions options;
  options.world = elastic_group(me, 2);
  options.copy_steps = 100;
  const RunResult result = run(
      state,
      [&](const Group&) {
        ++calls;
        return ++step < 3;
      },
      options);
  expect(result.left == (me.id == 1), "another rank has left");
  expect(calls == (me.id == 1 ? 0 : 3), "a step was done before the number of ranks changed");
  return 0;
}

TEST(ElasticRunInProcesses, ChangesTheNumberOfRanksBeforeAStepThatWouldBeDoneAgain) {
  Processes processes(2, shrinks_before_the_first_step);
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

// Ranks 1 and 2 end, and with them both copies of the part of rank 1. The first attempt to load the
// checkpoint is interrupted, as by the loss of a further rank.
int reloads_after_a_second_loss(const Me& me) {
  ::setenv("WEFT_MIN_RANKS", "1", 1);
  std::int64_t step = 0;
  int reloads = 0;
  State state;
  state.add("step", step);
  RunOptions options;
  options.world = elastic_group(me, 3, Transport::kTcp);
  options.copy_steps = 1;
  options.reload = [&](const Group&) {
    if (++reloads == 1) throw kLost;
    return step = 7;
  };
  const RunResult result = run(
      state,
      [&](const Group&) {
        if (step != 2) return ++step < 9;
        me.store->set("ready" + std::to_string(me.id), std::vector<std::uint8_t>{1});
        me.store->wait({"ready0", "ready1", "ready2"}, 20s);
        if (me.id != 0) ::_exit(0);
        const std::string gone = "1 2 ";  // as a launcher says it
        me.store->append("regroup/gone", {gone.begin(), gone.end()});
        throw kLost;
      },
      options);
  expect(reloads == 2, "the checkpoint was not loaded again");
  expect(result.steps == 9, "steps were counted from another one than that of the checkpoint");
  return 0;
}

TEST(ElasticRunInProcesses, LoadsTheCheckpointAgainAfterALossWhileItWasLoaded) {
  Processes processes(3, reloads_after_a_second_loss);
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0}));
}

// Rank 1 fails when both ranks have entered the new group.
int fails_after_its_copy(const Me& me) {
  Recovery recovery(elastic_group(me, 2));
  Program program(recovery.world());
  const std::weak_ptr<StateCopies> first = program.copies;
  const auto steps = program.steps([&](const Brought& brought) {
    const std::int64_t step = program.enter(recovery.world(), brought);
    const bool is_first = program.brought_epochs.size() == 1;
    if (me.id == 0) me.store->set("entered", std::vector<std::uint8_t>{1});
    if (me.id == 1 && is_first) {
      me.store->wait({"entered"}, 20s);
      throw kLost;
    }
    return step;
  });
  recovery.recover(steps, &kLost);
  expect(program.brought_epochs == std::vector<std::size_t>{1, 2},
         "the copies of both groups were not brought into the third one");
  expect(first.expired(), "copies that no rank needs are kept");
  expect(!program.copies->readable().empty(), "the newest copies are lost");
  return 0;
}

TEST(Recovery, BringsTheCopiesOfBothGroupsIfARankFailsBeforeAllHaveTheNewOnes) {
  Processes processes(2, fails_after_its_copy);
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

// A mesh that needs an even number of ranks: rank 2 leaves.
int leaves_with_its_copies(const Me& me) {
  Recovery recovery(elastic_group(me, 3), {.multiple = 2});
  Program program(recovery.world());
  const std::weak_ptr<StateCopies> first = program.copies;
  const auto steps = program.steps(
      [&](const Brought& brought) { return program.enter(recovery.world(), brought); });
  recovery.recover(steps, &kLost);
  expect(recovery.has_left() == (me.id == 2), "another rank has left");
  expect(first.expired() == (me.id != 2), "a rank that leaves keeps its copies, and others do not");
  return 0;
}

TEST(Recovery, KeepsTheCopiesOfARankThatLeavesUntilItsProcessEnds) {
  Processes processes(3, leaves_with_its_copies);
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0}));
}

std::uint64_t live_bytes() { return net::process_heap()->stats().live_bytes; }

int ends_a_run(const Me& me) {
  at::Tensor weights = at::ones({1 << 20});
  std::int64_t step = 0;
  State state;
  state.add("weights", weights);
  state.add("step", step);
  RunOptions options;
  options.world = elastic_group(me, 1);
  options.copy_steps = 1;
  const std::uint64_t before = live_bytes();
  run(
      state, [&](const Group&) { return ++step < 3; }, options);
  expect(live_bytes() >= before + weights.nbytes(), "the copies are freed");
  return 0;
}

// Another rank that has lost a peer in the last barrier may read them.
TEST(ElasticRunInProcesses, KeepsTheMemoryOfItsCopiesAtTheEnd) {
  Processes processes(1, ends_a_run);
  EXPECT_EQ(processes.codes(), std::vector<int>{0});
}

}  // namespace
}  // namespace weft::elastic
