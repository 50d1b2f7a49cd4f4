// The chain of a shard under a simulated network. Each seed draws servers, workers, a bound of the
// staleness and faults. Whatever happens: each push is applied once, an answered one is not lost,
// pulls keep to the bound and do not go back, and the servers end with the same state. This holds
// for elements of tensors and for rows of embedding tables.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <sstream>

#include "weft/ps/testing/shard_state.h"
#include "weft/ps/testing/simulated_worker.h"

namespace weft::ps {
namespace seeds_test {

using internal::Flaw;
using testing::SimulatedChain;
using testing::SimulatedWorker;
using testing::Violation;
using Time = SimulatedChain::Time;

constexpr Time kSecond = 1'000'000;
constexpr std::uint32_t kScenarioStream = 2;

struct Fault {
  bool is_crash = false;
  std::uint32_t server = 0;
  bool of_first = false;  // the server that serves the clients then
  Time at = 0, lasts = 0;
};

struct Scenario {
  SimulatedChain::Settings chain;
  std::vector<SimulatedWorker::Settings> workers;
  std::vector<std::size_t> mortal;
  std::vector<Fault> faults;
  Time calm = 0;

  static Scenario draw(std::uint64_t seed, Flaw flaw) {
    Random random(seed, kScenarioStream);
    Scenario s;
    s.chain.servers = 2 + static_cast<std::uint32_t>(random.below(2));
    s.chain.delay = random.below(3) == 0 ? 60'000 : 2'000;
    s.chain.loss = random.below(2) == 0 ? 0 : 0.1 * random.uniform();
    s.chain.repeats = random.below(2) == 0 ? 0 : 0.2 * random.uniform();
    s.chain.flaw = flaw;
    const auto workers = static_cast<std::uint32_t>(1 + random.below(4));
    const int staleness = static_cast<int>(random.below(4)) - 1;
    const int pushes = 10 + static_cast<int>(random.below(30));
    const bool deltas = random.below(3) == 0;
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      SimulatedWorker::Settings one{worker, workers, staleness, pushes};
      one.pulls_deltas = deltas;
      one.compute = 1'000 + static_cast<Time>(random.below(30'000));
      if (random.below(6) == 0) {
        one.dies_after = static_cast<int>(random.below(static_cast<std::uint64_t>(pushes)));
        s.mortal.push_back(worker);
      }
      s.workers.push_back(one);
    }
    for (std::uint64_t left = random.below(7); left > 0; --left) {
      Fault fault;
      fault.is_crash = random.below(3) != 0;
      fault.server = static_cast<std::uint32_t>(random.below(s.chain.servers));
      fault.of_first = random.below(2) == 0;
      fault.at = static_cast<Time>(random.below(3 * kSecond));
      fault.lasts = 10'000 + static_cast<Time>(random.below(kSecond));
      s.calm = std::max(s.calm, fault.at + fault.lasts);
      s.faults.push_back(fault);
    }
    return s;
  }

  std::string describe() const {
    std::ostringstream out;
    out << chain.servers << " servers, " << workers.size() << " workers, bound "
        << workers[0].staleness << ", " << workers[0].pushes << " pushes, "
        << (workers[0].pulls_deltas ? "differences" : "values") << ", delay " << chain.delay
        << " us, loss " << chain.loss << ", repeats " << chain.repeats << ";";
    for (const Fault& fault : faults)
      out << (fault.is_crash ? " crash" : " cut") << " of "
          << (fault.of_first ? "the first" : std::to_string(fault.server)) << " at " << fault.at
          << " for " << fault.lasts << ",";
    return out.str();
  }
};

struct Tally {
  std::uint64_t pushes = 0, crashes = 0, takeovers = 0, lost = 0, deaths = 0;
};

std::vector<float> values_of(const internal::Shard& shard) {
  internal::Request all;
  std::string bytes(shard.pull_bytes(all), '\0');
  shard.read(all, std::as_writable_bytes(std::span(bytes)));
  return testing::floats_of(bytes);
}

// Pushes are acknowledged one by one, and a step with staleness 0 happens as a whole.
void check_row(const internal::Shard& shard, const SimulatedWorker& worker, float element) {
  std::vector<float> row(2);
  const std::vector<std::uint64_t> keys{SimulatedWorker::row_of(worker.worker())};
  shard.tables().table(0).read(keys, row);
  if (row[0] != row[1]) throw Violation("a row is torn");
  if (worker.staleness() == kSync && row[0] != element)
    throw Violation("a step was applied in part: " + worker.state());
  if (worker.staleness() != kSync && row[0] < static_cast<float>(worker.acknowledged_rows()))
    throw Violation("an acknowledged push of a row is lost: " + worker.state());
  if (row[0] > static_cast<float>(worker.issued()))
    throw Violation("a push of a row was applied twice: " + worker.state());
}

void check_end(SimulatedChain& chain,
               const std::vector<std::unique_ptr<SimulatedWorker>>& workers) {
  std::string state;
  for (const Member& member : chain.view().members) {
    const internal::Replica* const replica = chain.replica(member);
    if (replica == nullptr) throw Violation("a member of the last view is not alive");
    const std::string mine = testing::state_of(replica->shard());
    if (!state.empty() && state != mine) throw Violation("two servers have different states");
    state = mine;
    const std::vector<float> values = values_of(replica->shard());
    if (values.size() != workers.size()) throw Violation("the tensors are lost");
    for (const auto& worker : workers) {
      const float value = values[worker->worker()];
      if (value < static_cast<float>(worker->acknowledged()))
        throw Violation("an acknowledged push is lost: " + worker->state());
      if (value > static_cast<float>(worker->issued()))
        throw Violation("a push was applied twice: " + worker->state());
      check_row(replica->shard(), *worker, value);
    }
  }
}

void run_scenario(const Scenario& s, std::uint64_t seed, Tally& tally) {
  SimulatedChain chain(s.chain, seed);
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  const auto all_joined = [&] {
    return workers.size() == s.workers.size() &&
           std::all_of(workers.begin(), workers.end(),
                       [](const auto& one) { return one->has_joined(); });
  };
  for (const auto& settings : s.workers) {
    workers.push_back(std::make_unique<SimulatedWorker>(chain, settings, all_joined));
    workers.back()->set_mortal(s.mortal);
  }
  for (const Fault& fault : s.faults) {
    chain.after(fault.at, [&chain, fault] {
      const bool has_view = !chain.view().members.empty();
      const std::uint32_t server =
          fault.of_first && has_view ? chain.view().members[0].server : fault.server;
      if (fault.is_crash)
        chain.crash(server, fault.lasts);
      else
        chain.cut(server, fault.lasts);
    });
  }
  std::function<void()> drop_dead = [&] {
    for (const auto& worker : workers)
      if (worker->is_dead()) chain.drop(worker->worker(), worker->client());
    chain.after(kSecond / 5, drop_dead);
  };
  drop_dead();
  chain.after(s.calm, [&] { chain.calm(); });
  const auto all_over = [&] {
    return std::all_of(workers.begin(), workers.end(),
                       [](const auto& one) { return one->is_over(); });
  };
  chain.run(s.calm + 60 * kSecond, all_over);
  for (const auto& worker : workers)
    if (!worker->is_over())
      throw Violation("it does not end: " + worker->state() + "; " + chain.describe());
  chain.run(chain.now() + std::max<Time>(0, s.calm - chain.now()) + 3 * kSecond,
            [] { return false; });
  check_end(chain, workers);
  for (const auto& worker : workers) {
    tally.pushes += static_cast<std::uint64_t>(worker->acknowledged());
    tally.deaths += worker->is_dead();
  }
  tally.crashes += chain.crashes();
  tally.takeovers += chain.takeovers();
  tally.lost += chain.lost();
}

// The broken promise; "" if none.
std::string violation(std::uint64_t seed, Flaw flaw, Tally& tally) {
  try {
    run_scenario(Scenario::draw(seed, flaw), seed, tally);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void expect_promises(std::uint64_t first, std::uint64_t count) {
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::string what = violation(seed, Flaw::kNone, tally);
    ASSERT_EQ(what, "") << "seed " << seed << ": " << Scenario::draw(seed, Flaw::kNone).describe()
                        << "\n  again: WEFT_SIM_SEED=" << seed
                        << " ctest --test-dir build/release -R ps.SimulatedChain -V";
  }
  EXPECT_GT(tally.pushes, 20 * count);
  EXPECT_GT(tally.crashes, count / 2);
  EXPECT_GT(tally.takeovers, count / 4);
  EXPECT_GT(tally.lost, count);
  EXPECT_GT(tally.deaths, count / 10);
}

TEST(SimulatedChain, LosesNoAcknowledgedPushAndAppliesNoneTwice) {
  if (const char* text = std::getenv("WEFT_SIM_SEED")) {
    const auto seed = std::strtoull(text, nullptr, 10);
    Tally tally;
    EXPECT_EQ(violation(seed, Flaw::kNone, tally), "")
        << Scenario::draw(seed, Flaw::kNone).describe();
    return;
  }
  expect_promises(0, 100);
}

TEST(SimulatedChain, NoticesWhenARuleIsBroken) {
  constexpr std::uint64_t kMost = 1000;
  for (const Flaw flaw :
       {Flaw::kAnswersEarly, Flaw::kForgetsClients, Flaw::kJoinsEarly, Flaw::kIgnoresJoining}) {
    Tally tally;
    std::uint64_t seed = 0;
    while (seed < kMost && violation(seed, flaw, tally).empty()) ++seed;
    EXPECT_LT(seed, kMost) << "flaw " << static_cast<int>(flaw) << " was not noticed";
  }
}

TEST(SimulatedChainSlow, KeepsItsPromisesForAThousandSeeds) {
  const char* const text = std::getenv("WEFT_SIM_SEEDS");
  expect_promises(1000, text == nullptr ? 1000 : std::strtoull(text, nullptr, 10));
}

}  // namespace seeds_test
}  // namespace weft::ps
