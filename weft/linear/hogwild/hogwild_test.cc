#include "weft/linear/hogwild/hogwild.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"
#include "weft/linear/data/power_law.h"
#include "weft/linear/hogwild/internal/shared_weights.h"
#include "weft/linear/hogwild/testing/thread_ring.h"
#include "weft/linear/solve/cocoa.h"
#include "weft/linear/solve/testing/thread_ranks.h"

namespace weft::linear {
namespace hogwild_test {

constexpr PowerLaw kLaw{.rows = 4000, .columns = 1000, .row_entries = 15};
const Objective kLogistic{Loss::kLogistic, 1e-3, 0};

const SparseRows& data() {
  static const SparseRows rows = generate(kLaw, 0, kLaw.rows);
  return rows;
}

// The optimum, by CoCoA with a certificate.
double optimum(const Objective& objective) {
  Alone alone;
  CocoaOptions options;
  options.stop.relative_gap = 1e-6;
  return cocoa({&data(), data().labels, objective}, kLaw.columns, alone, options)
      .certificate.primal;
}

// Rows of unit length with all columns, and labels of a linear rule.
SparseRows dense_rows(int rows, std::uint32_t columns) {
  Random random(5);
  SparseRows made;
  for (int i = 0; i < rows; ++i) {
    std::vector<Entry> row;
    double margin = 0;
    for (std::uint32_t j = 0; j < columns; ++j) {
      row.push_back({j, (random.uniform_float() - 0.5f) / std::sqrt(columns / 12.0f)});
      margin += row.back().value * (j % 2 == 0 ? 8 : -8);
    }
    made.add(random.uniform() < 1 / (1 + std::exp(-margin)) ? 1 : -1, row);
  }
  return made;
}

HogwildResult train(const HogwildOptions& options, const Objective& objective = kLogistic) {
  Alone alone;
  return hogwild({&data(), data().labels, objective}, kLaw.columns, alone, {}, options);
}

TEST(Hogwild, OneWorkerComesWithinOnePercentOfTheOptimumForEachLoss) {
  for (const Loss loss : {Loss::kLogistic, Loss::kHinge, Loss::kSquaredHinge, Loss::kSquared}) {
    const Objective objective{loss, 1e-3, 0};
    const double best = optimum(objective);
    HogwildOptions options{.epochs = 20};
    options.step = loss == Loss::kLogistic ? 2 : 0.5;
    const auto result = train(options, objective);
    EXPECT_GE(result.objective, best * (1 - 1e-6)) << to_string(loss);
    EXPECT_LE(result.objective, best * 1.01) << to_string(loss);
  }
}

TEST(Hogwild, SeveralThreadsReachTheLossOfOneWithAndWithoutLocksAndClusters) {
  const double best = optimum(kLogistic);
  for (const auto locks : {Locks::kNone, Locks::kRows, Locks::kColumns}) {
    for (const int cluster_size : {0, 1, 2}) {
      HogwildOptions options{.threads = 4, .locks = locks, .cluster_size = cluster_size};
      options.epochs = 12, options.step = 2;
      EXPECT_LE(train(options).objective, best * 1.01)
          << static_cast<int>(locks) << " " << cluster_size;
    }
  }
}

// Rows without zeros: every update writes every weight, so workers meet in each of them.
TEST(Hogwild, DenseRowsReachTheLossOfOneWorkerToo) {
  const SparseRows dense = dense_rows(1000, 20);
  const RowProblem problem{&dense, dense.labels, kLogistic};
  Alone alone;
  CocoaOptions exactly;
  exactly.stop.relative_gap = 1e-6;
  const double best = cocoa(problem, 20, alone, exactly).certificate.primal;
  for (const int threads : {1, 2, 4}) {
    for (const int cluster_size : {0, 1}) {
      HogwildOptions options{.threads = threads, .cluster_size = cluster_size};
      options.epochs = 20, options.step = 1;
      const double found = hogwild(problem, 20, alone, {}, options).objective;
      EXPECT_GE(found, best * (1 - 1e-6));
      EXPECT_LE(found, best * 1.01) << threads << " threads, clusters of " << cluster_size;
    }
  }
}

TEST(Hogwild, OneWorkerRepeats) {
  HogwildOptions options{.epochs = 2};
  EXPECT_EQ(train(options).weights, train(options).weights);
  options.seed = 2;
  EXPECT_NE(train(options).weights, train({.epochs = 2}).weights);
}

TEST(Hogwild, ReportsTheObjectiveOfItsWeightsAfterEachEpoch) {
  std::vector<double> objectives;
  HogwildOptions options{.epochs = 5};
  options.on_epoch = [&](const Epoch& epoch) {
    objectives.push_back(epoch.objective);
    EXPECT_EQ(epoch.epoch, static_cast<std::int64_t>(objectives.size()));
    EXPECT_EQ(epoch.exchanged_bytes, 0U);
    EXPECT_GT(epoch.seconds, 0);
  };
  const auto result = train(options);
  ASSERT_EQ(objectives.size(), 5U);
  EXPECT_LT(objectives.back(), objectives.front());
  EXPECT_EQ(result.objective, objectives.back());
  options.on_epoch = nullptr;
  const auto silent = train(options);
  EXPECT_EQ(silent.weights, result.weights);
  EXPECT_EQ(silent.objective, result.objective);
  const double loss = loss_sum(Loss::kLogistic, data(), data().labels, result.weights);
  EXPECT_NEAR(result.objective, loss / 4000 + regularizer(kLogistic, result.weights), 1e-12);
}

TEST(Hogwild, ALargeRegularizerIsStable) {
  const Objective strong{Loss::kLogistic, 100, 0};
  const auto result = train({.epochs = 5, .step = 5}, strong);
  EXPECT_LT(result.objective, std::log(2) * 1.001);
}

TEST(Hogwild, AClusterWithoutRowsDoesNotCountInTheMean) {
  const SparseRows row = generate(kLaw, 0, 1);
  const auto weights_of = [&](int threads) {
    Alone alone;
    const HogwildOptions options{.threads = threads, .epochs = 3};
    return hogwild({&row, row.labels, kLogistic}, kLaw.columns, alone, {}, options).weights;
  };
  EXPECT_EQ(weights_of(2), weights_of(1));
}

// Memory of a host, which begins with a cache line.
class HostMemory {
 public:
  explicit HostMemory(std::size_t bytes) : words_((bytes + 64) / 8 + 1) {}
  std::byte* get() {
    auto* const block = reinterpret_cast<std::byte*>(words_.data());
    const auto unaligned = reinterpret_cast<std::uintptr_t>(block) % 64;
    return block + (unaligned == 0 ? 0 : 64 - unaligned);
  }

 private:
  std::vector<std::uint64_t> words_;
};

// Ranks of `hosts` hosts as threads. Ranks of a host share memory; hosts exchange messages.
HogwildResult on_hosts(int ranks, int hosts, HogwildOptions options) {
  const int of_host = ranks / hosts, workers = of_host * options.threads;
  std::vector<HostMemory> memory(static_cast<std::size_t>(hosts),
                                 HostMemory(hogwild_memory(kLaw.columns, workers, options)));
  ThreadRing::Shared ring(hosts);
  HogwildResult result;
  on_thread_ranks(ranks, [&](Ranks& me) {
    const int host = me.rank() / of_host;
    ThreadRing messages(ring, host);
    const HostPlace place{.memory = memory[static_cast<std::size_t>(host)].get(),
                          .first_worker = me.rank() % of_host * options.threads,
                          .workers = workers,
                          .messages = me.rank() % of_host == 0 ? &messages : nullptr,
                          .host = host,
                          .hosts = hosts};
    const auto r = static_cast<std::uint64_t>(me.rank()), k = static_cast<std::uint64_t>(ranks);
    const auto rows = generate(kLaw, 4000 * r / k, 4000 * (r + 1) / k);
    auto mine = hogwild({&rows, rows.labels, kLogistic}, kLaw.columns, me, place, options);
    if (me.rank() == 0) result = std::move(mine);
  });
  EXPECT_TRUE(ring.empty());
  return result;
}

TEST(Hogwild, RanksOfOneHostShareTheWeights) {
  HogwildOptions options{.epochs = 12, .step = 2};
  EXPECT_LE(on_hosts(2, 1, options).objective, optimum(kLogistic) * 1.01);
  options.threads = 2, options.cluster_size = 0;
  EXPECT_LE(on_hosts(2, 1, options).objective, optimum(kLogistic) * 1.01);
}

// A rank whose epochs begin after the first cluster of its host has visited its rows.
class AfterTheFirst final : public Ranks {
 public:
  AfterTheFirst(Ranks& ranks, const internal::SharedWeights& shared)
      : ranks_(ranks), shared_(shared) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void sum(std::span<double> values) override { ranks_.sum(values); }
  // The last collective before an epoch.
  void max(std::span<double> values) override {
    ranks_.max(values);
    const auto limit = Deadline::in(std::chrono::seconds(5));
    while (shared_.ended(0).load(std::memory_order_acquire) == 0 && !limit.passed())
      std::this_thread::yield();
    EXPECT_EQ(shared_.ended(0).load(std::memory_order_acquire), 1U);
  }
  std::vector<std::string> gather(const std::string& mine) override { return ranks_.gather(mine); }
  std::vector<std::string> exchange(std::vector<std::string> to) override {
    return ranks_.exchange(std::move(to));
  }
  std::uint64_t exchanged_bytes() const override { return ranks_.exchanged_bytes(); }
  bool in_memory() const override { return ranks_.in_memory(); }

 private:
  Ranks& ranks_;
  internal::SharedWeights shared_;
};

// One exchange in each epoch gives other weights than several.
TEST(Hogwild, AFirstClusterOfFewRowsDoesNotEndTheExchangesOfItsHost) {
  const auto weights_with = [](std::int64_t exchange_rows) {
    const HogwildOptions options{.exchange_rows = exchange_rows, .epochs = 2};
    HostMemory memory(hogwild_memory(kLaw.columns, 2, options));
    std::vector<double> weights;
    on_thread_ranks(2, [&](Ranks& me) {
      AfterTheFirst later(me, {memory.get(), kLaw.columns, 2});
      Ranks& mine = me.rank() == 0 ? me : static_cast<Ranks&>(later);
      const auto rows = me.rank() == 0 ? generate(kLaw, 0, 10) : generate(kLaw, 10, 1000);
      const HostPlace place{.memory = memory.get(), .first_worker = me.rank(), .workers = 2};
      auto result = hogwild({&rows, rows.labels, kLogistic}, kLaw.columns, mine, place, options);
      if (me.rank() == 0) weights = std::move(result.weights);
    });
    return weights;
  };
  EXPECT_EQ(weights_with(64), weights_with(64));
  EXPECT_NE(weights_with(64), weights_with(1'000'000));
}

TEST(Hogwild, HostsAreClustersOfARing) {
  HogwildOptions options{.epochs = 12, .step = 2};
  options.exchange_rows = 128;
  EXPECT_LE(on_hosts(2, 2, options).objective, optimum(kLogistic) * 1.01);
  EXPECT_LE(on_hosts(4, 2, options).objective, optimum(kLogistic) * 1.01);
}

TEST(Hogwild, InvalidOptionsAreRefused) {
  const auto refused = [](const HogwildOptions& options, const std::string& what) {
    expect_refused([&] { train(options); }, Errc::kInvalidArgument, what);
  };
  refused({.threads = 0}, "threads must be from 1");
  refused({.epochs = 0}, "epochs must be at least 1");
  refused({.step = -1}, "step must be above 0");
  refused({.decay = 2}, "decay must be above 0 and at most 1");
  expect_refused(
      [] {
        train({}, {Loss::kLogistic, 1e-3, 1e-3});
      },
      Errc::kInvalidArgument, "does not support l1");
  expect_refused(
      [] {
        train({.epochs = 60, .step = 1e30, .decay = 1}, {Loss::kSquared, 1e-9, 0});
      },
      Errc::kInvalidArgument, "step");
  expect_refused([] { parse_locks("row"); }, Errc::kInvalidArgument,
                 "there are none, rows and columns");
}

}  // namespace hogwild_test
}  // namespace weft::linear
