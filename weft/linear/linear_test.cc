#include "weft/linear/linear.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/linear/data/power_law.h"
#include "weft/linear/internal/group_ranks.h"
#include "weft/linear/internal/group_ring.h"
#include "weft/linear/model/predict.h"
#include "weft/linear/solve/testing/reference_data.h"

namespace weft::linear {
namespace linear_test {

const std::string kData = WEFT_LINEAR_REFERENCE "data.svm";

struct OneVsRest {
  int of_class = 0;
  double objective = 0;
  std::vector<double> weights;
};
const std::vector<OneVsRest> kOneVsRest{
#include "weft/linear/reference/one_vs_rest.inc"
};

// The labels of the reference data as one of three classes, or as the signs.
void set_classes(SparseRows& rows, int classes) {
  for (double& label : rows.labels) {
    if (classes == 3)
      label = label < -0.5 ? 1 : label <= 0.5 ? 2 : 3;
    else
      label = label > 0 ? 1 : -1;
  }
}

TrainOptions exactly(const Objective& objective, double gap = 1e-6) {
  TrainOptions options;
  options.objective = objective;
  options.cocoa.stop = {.relative_gap = gap, .max_passes = 100'000};
  options.cocoa.local_passes = 10;  // few rounds: they are slow where ranks share a core
  return options;
}

// Trains on ranks as threads, and calls `then` on each.
void train_on(int ranks, int classes, const TrainOptions& options,
              const std::function<void(const Group&, const Trained&)>& then) {
  comm::replicate(ranks, [&](const Group& group) {
    auto rows = load(kData, group);
    if (classes > 0) set_classes(rows, classes);
    then(group, train(group, std::move(rows), options));
  });
}

void expect_optima(int ranks, double least_regularizer) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l2 + optimum.l1 < least_regularizer) continue;
    if (optimum.loss == "hinge") continue;  // many rounds; see cocoa_test.cc
    SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l2) + " " +
                 std::to_string(optimum.l1));
    const Loss loss = parse_loss(optimum.loss);
    const auto options = exactly({loss, optimum.l2, optimum.l1});
    train_on(
        ranks, is_classifier(loss) ? 2 : 0, options, [&](const Group&, const Trained& trained) {
          ASSERT_EQ(trained.outcomes.size(), 1U);
          EXPECT_TRUE(trained.outcomes[0].converged);
          EXPECT_NEAR(trained.outcomes[0].objective, optimum.objective, 1e-6 * optimum.objective);
          for (std::size_t j = 0; j < 60; ++j)
            EXPECT_NEAR(trained.model.weights[j], optimum.weights[j], 5e-3) << j;
        });
  }
}

TEST(Linear, RanksAsThreadsFindTheOptimaOfScikitLearn) { expect_optima(2, 0.01); }

TEST(LinearSlow, MoreRanksFindTheOptimaOfScikitLearnForWeakRegularizersToo) { expect_optima(3, 0); }

TEST(Linear, EveryRankGetsTheSameModelWhateverTheirNumber) {
  std::vector<Trained> all;
  std::mutex mutex;
  for (const int ranks : {1, 3}) {
    train_on(ranks, 3, exactly({Loss::kLogistic, 0.01, 0}, 1e-7),
             [&](const Group&, const Trained& trained) {
               const std::lock_guard lock(mutex);
               all.push_back(trained);
             });
  }
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[2].model.weights, all[1].model.weights);
  EXPECT_EQ(all[3].model.weights, all[1].model.weights);
  for (std::size_t i = 0; i < all[0].model.weights.size(); ++i)
    EXPECT_NEAR(all[1].model.weights[i], all[0].model.weights[i], 2e-3);
}

TEST(Linear, SeveralClassesAreTheOneVsRestProblemsOfScikitLearn) {
  train_on(2, 3, exactly({Loss::kLogistic, 0.01, 0}), [&](const Group&, const Trained& trained) {
    const Model& model = trained.model;
    ASSERT_EQ(model.outputs(), 3U);
    for (std::size_t output = 0; output < 3; ++output) {
      const auto& known = kOneVsRest[static_cast<std::size_t>(model.labels[output] - 1)];
      EXPECT_EQ(trained.outcomes[output].of_class, known.of_class);
      EXPECT_NEAR(trained.outcomes[output].objective, known.objective, 1e-6 * known.objective);
      for (std::size_t j = 0; j < 60; ++j)
        EXPECT_NEAR(model.weights[j * 3 + output], known.weights[j], 5e-3);
    }
  });
}

TEST(Linear, HogwildOfThreadsAndRanksComesWithinOnePercentOfTheOptimum) {
  const Optimum& optimum = optima()[3];
  ASSERT_EQ(optimum.loss, "logistic");
  auto options = exactly({Loss::kLogistic, optimum.l2, 0});
  options.rule = Rule::kHogwild;
  options.hogwild = {.threads = 2, .epochs = 60, .step = 1, .decay = 0.95};
  train_on(2, 2, options, [&](const Group& group, const Trained& trained) {
    EXPECT_LE(trained.outcomes[0].objective, optimum.objective * 1.01) << group.rank();
    EXPECT_GE(trained.outcomes[0].objective, optimum.objective * (1 - 1e-6));
  });
}

TEST(Linear, HogwildTrainsSeveralClassesInTheSameMemory) {
  auto options = exactly({Loss::kLogistic, 0.01, 0});
  options.rule = Rule::kHogwild;
  options.hogwild = {.epochs = 60, .step = 1, .decay = 0.95};
  train_on(2, 3, options, [&](const Group&, const Trained& trained) {
    for (const Outcome& outcome : trained.outcomes) {
      const double best = kOneVsRest[static_cast<std::size_t>(outcome.of_class - 1)].objective;
      EXPECT_LE(outcome.objective, best * 1.01) << outcome.of_class;
    }
  });
}

TEST(Linear, AFeatureOfAHugeIndexCostsNoMemory) {
  auto options = exactly({Loss::kSquaredHinge, 0.1, 0});
  options.bias = 1;
  const TempDir folder;
  std::ofstream(folder / "data") << "1 3:1\n-1 90000000:1\n1 3:2 90000000:-1\n2 5:1\n2 5:2\n";
  comm::replicate(2, [&](const Group& group) {
    const auto trained = train(group, load(folder / "data", group, {.bias = 1}), options);
    EXPECT_EQ(trained.model.features, 90'000'000U);
    EXPECT_EQ(trained.model.columns.size(), 4U);
    EXPECT_EQ(trained.model.labels, (std::vector<int>{1, -1, 2}));
    const auto rows = read_libsvm(folder / "data", {.bias = 1});
    EXPECT_EQ(predict(trained.model, rows).labels, (std::vector<double>{1, -1, 1, 2, 2}));
  });
}

TEST(Linear, RowsWithAnotherBiasThanTheOptionsAreRefusedByAllRanks) {
  const TempDir folder;
  std::ofstream(folder / "data") << "1 1:1\n-1 2:1\n1 3:1\n";
  const auto refused = [&](double of_rows, double of_options, const std::string& what) {
    auto options = exactly({Loss::kLogistic, 0.01, 0});
    options.bias = of_options;
    comm::replicate(2, [&](const Group& group) {
      expect_refused(
          [&] { train(group, load(folder / "data", group, {.bias = of_rows}), options); },
          Errc::kInvalidArgument, what);
    });
  };
  refused(1, -1, "row 0 has a bias; set TrainOptions::bias");
  refused(-1, 1, "row 0 does not have the bias 1 of TrainOptions");
  refused(2, 1, "row 0 does not have the bias 1 of TrainOptions");
}

TEST(Linear, RowsWhoseColumnsDoNotAscendAreRefusedByAllRanks) {
  comm::replicate(2, [&](const Group& group) {
    SparseRows rows;
    rows.add(group.rank(), std::vector<Entry>{{1, 1}, {7, 1}});
    if (group.rank() == 1) rows.add(1, std::vector<Entry>{{9, 1}, {2, 1}});
    expect_refused(
        [&] {
          train(group, rows, exactly({Loss::kLogistic, 0.01, 0}));
        },
        Errc::kInvalidArgument, "row 1: the columns do not ascend");
  });
}

TEST(Linear, NumbersThatAreNotFiniteAreRefusedByAllRanksWithTheirPlace) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  comm::replicate(2, [&](const Group& group) {
    for (const bool in_label : {false, true}) {
      SparseRows rows;
      rows.add(1, std::vector<Entry>{{1, 1}});
      const bool bad = group.rank() == 1;
      const auto value = bad && !in_label ? static_cast<float>(kNan) : 1.0F;
      rows.add(bad && in_label ? kNan : -1, std::vector<Entry>{{0, 1}, {7, value}});
      expect_refused(
          [&] {
            train(group, rows, exactly({Loss::kSquared, 0.01, 0}));
          },
          Errc::kInvalidArgument,
          in_label ? "row 1: its label is not a finite number"
                   : "row 1: the value in column 7 is not a finite number");
    }
  });
}

// Such as memory that has run out on one rank.
TEST(Linear, ARankWithoutMemoryOrThreadsEndsTheTrainingOfAllRanks) {
  std::atomic<bool> told = false;
  comm::replicate(2, [&](const Group& group) {
    auto rows = load(kData, group);
    auto options = exactly({Loss::kSquared, 0.01, 0});
    if (group.rank() == 0) options.on_report = [](const Report&) { throw std::bad_alloc(); };
    const auto train_here = [&] { train(group, std::move(rows), options); };
    if (group.rank() == 1) {
      expect_refused(train_here, Errc::kAborted, "out of memory");
      told = true;
      return;
    }
    EXPECT_THROW(train_here(), std::bad_alloc);
    // This rank stays: its end would tell the other one too.
    for (const auto limit = Deadline::in(std::chrono::seconds(5)); !told && !limit.passed();)
      std::this_thread::yield();
    EXPECT_TRUE(told);
  });
}

// The time of a wait begins with it, and not with the message before.
TEST(GroupRing, WaitsItsWholeTimeAfterALongComputation) {
  comm::replicate(2, [&](const Group& group) {
    group.backend().setTimeout(std::chrono::milliseconds(20));
    internal::GroupRing ring(group, {0, 1}, 3);
    for (const auto computes = Deadline::in(std::chrono::milliseconds(30)); !computes.passed();)
      std::this_thread::yield();
    EXPECT_NO_THROW(ring.wait());
    const auto limit = Deadline::in(std::chrono::seconds(5));
    const auto wait_on = [&] {
      while (!limit.passed()) ring.wait();
    };
    expect_refused(wait_on, Errc::kTimeout, "no message from the neighboring hosts in time");
  });
}

TEST(Linear, ReportsEachRoundWithItsTraffic) {
  auto options = exactly({Loss::kLogistic, 0.01, 0}, 1e-3);
  std::vector<Round> rounds;
  options.on_report = [&](const Report& report) {
    if (report.round->exchanged_bytes > 0) rounds.push_back(*report.round);
  };
  comm::replicate(2, [&](const Group& group) {
    auto rows = load(kData, group);
    set_classes(rows, 2);
    auto mine = options;
    if (group.rank() != 0) mine.on_report = nullptr;
    const auto trained = train(group, std::move(rows), mine);
    EXPECT_GE(trained.exchanged_bytes, 60U * 8);
  });
  ASSERT_FALSE(rounds.empty());
  EXPECT_LE(rounds.back().certificate->relative_gap(), 1e-3);
}

TEST(Linear, AMistakeInOneRanksPartIsTheErrorOfAllRanks) {
  const TempDir folder;
  std::ofstream file(folder / "data");
  for (int i = 0; i < 99; ++i) file << "1 1:1 2:2\n-1 1:1 3:1\n";
  file << "1 2:1 1:1\n" << std::flush;
  comm::replicate(3, [&](const Group& group) {
    expect_refused([&] { load(folder / "data", group); }, Errc::kCorrupt,
                   "data:199:7: index 1 follows index 2");
    // The group works on.
    group.barrier();
  });
}

// The ranks' shares would overlap, or leave out rows.
TEST(Linear, FilesOfOtherSizesOnOtherHostsAreRefused) {
  const TempDir folder;
  std::ofstream(folder / "0") << "1 1:1\n-1 2:1\n";
  std::ofstream(folder / "1") << "1 1:1\n-1 2:1\n1 3:1\n";
  comm::replicate(2, [&](const Group& group) {
    expect_refused([&] { load(folder / std::to_string(group.rank()), group); },
                   Errc::kInvalidArgument, " has 13 bytes on rank 0 and 19 on rank 1; give all");
  });
}

TEST(Linear, WrongLabelsAreRefusedByAllRanks) {
  const auto refused = [](const std::string& text, const TrainOptions& options,
                          const std::string& what) {
    const TempDir folder;
    std::ofstream(folder / "data") << text;
    comm::replicate(2, [&](const Group& group) {
      expect_refused([&] { train(group, load(folder / "data", group), options); },
                     Errc::kInvalidArgument, what);
    });
  };
  const auto logistic = exactly({Loss::kLogistic, 0.01, 0});
  refused("1 1:1\n1 1:1\n1 2:2\n1.5 1:3\n", logistic, "label 1.5 is not a whole number");
  refused("7 1:1\n7 1:1\n7 2:2\n", logistic, "all rows have the label 7");
  auto few = logistic;
  few.max_classes = 2;
  refused("1 1:1\n2 1:1\n3 2:2\n", few, "more than 2 classes");
}

TEST(Linear, UnsupportedCombinationsAreRefused) {
  const auto refused = [](TrainOptions options, const std::string& what) {
    comm::replicate(1, [&](const Group& group) {
      auto rows = load(kData, group);
      set_classes(rows, 2);
      expect_refused([&] { train(group, std::move(rows), options); }, Errc::kInvalidArgument, what);
    });
  };
  refused(exactly({Loss::kHinge, 0, 0.1}), "needs a smooth loss");
  auto options = exactly({Loss::kLogistic, 0, 0.1});
  options.division = Division::kRows;
  refused(options, "needs l2 above 0");
  options = exactly({Loss::kHinge, 0.1, 0});
  options.division = Division::kColumns;
  refused(options, "does not support hinge");
  options.rule = Rule::kHogwild;
  options.objective = {Loss::kLogistic, 0.1, 0.1};
  refused(options, "does not support l1");
  options.objective = {Loss::kLogistic, 0.1, 0};
  refused(options, "hogwild does not support a division by columns");
  options.division = Division::kRows;
  EXPECT_NO_THROW(check(options));
  expect_refused([] { parse_rule("cocoa++"); }, Errc::kInvalidArgument,
                 "cocoa+, cocoa and hogwild");
  expect_refused([] { parse_division("row"); }, Errc::kInvalidArgument, "auto, rows and columns");
}

TEST(Linear, AnEmptyFileIsRefused) {
  const TempDir folder;
  std::ofstream(folder / "data") << "# nothing\n";
  comm::replicate(2, [&](const Group& group) {
    expect_refused([&] { load(folder / "data", group); }, Errc::kCorrupt, "data has no rows");
  });
}

TEST(GroupRanks, ExchangeTextsOfAnyLength) {
  comm::replicate(3, [&](const Group& group) {
    internal::GroupRanks ranks(group);
    std::vector<std::string> to;
    for (int r = 0; r < 3; ++r) {
      const char letter = static_cast<char>('a' + 3 * group.rank() + r);
      to.emplace_back(r == 2 ? 0 : 1'500'000 * static_cast<std::size_t>(group.rank()) + 1, letter);
    }
    const auto got = ranks.exchange(to);
    for (std::size_t from = 0; from < 3; ++from) {
      const std::size_t size = group.rank() == 2 ? 0 : 1'500'000 * from + 1;
      EXPECT_EQ(got[from], std::string(size, static_cast<char>('a' + 3 * from + group.rank())));
    }
  });
}

// Processes: the model of rank 0 against the optimum, by the exit code.
int train_in_process(const Group& group, const TrainOptions& options, double best, double percent) {
  auto rows = load(kData, group);
  set_classes(rows, 2);
  const auto trained = train(group, std::move(rows), options);
  return trained.outcomes[0].objective <= best * (1 + percent / 100) ? 0 : 1;
}

TEST(LinearProcesses, TrainOverSharedMemoryAndTcp) {
  const Optimum& optimum = optima()[3];
  const auto options = exactly({Loss::kLogistic, optimum.l2, 0});
  for (const std::string transport : {"shm", "tcp"}) {
    const auto codes = comm::fork_ranks(2, transport, [&](const Group& group) {
      return train_in_process(group, options, optimum.objective, 1e-4);
    });
    EXPECT_EQ(codes, (std::vector<int>{0, 0})) << transport;
  }
}

TEST(LinearProcesses, HogwildSharesMemoryInAHostAndPassesATokenBetweenHosts) {
  const Optimum& optimum = optima()[3];
  auto options = exactly({Loss::kLogistic, optimum.l2, 0});
  options.rule = Rule::kHogwild;
  options.hogwild = {.exchange_rows = 16, .epochs = 40, .step = 1, .decay = 0.93};
  for (const auto& hosts : {std::vector<std::string>{}, {"a", "a", "b"}}) {
    const int ranks = hosts.empty() ? 2 : 3;
    const auto codes = comm::fork_ranks(
        ranks, "auto",
        [&](const Group& group) { return train_in_process(group, options, optimum.objective, 1); },
        hosts);
    EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

// Trains until rank `lost` is killed in its third round or epoch. 42: the training ended with the
// error that a rank is lost.
int train_until_killed(const Group& group, TrainOptions options, int lost) {
  auto rows = load(kData, group);
  set_classes(rows, 2);
  int reports = 0;
  options.on_report = [&](const Report&) {
    if (group.rank() == lost && ++reports == 3) ::kill(::getpid(), SIGKILL);
  };
  try {
    train(group, std::move(rows), options);
  } catch (const Error& error) {
    return error.code() == Errc::kPeerLost || error.code() == Errc::kAborted ? 42 : 43;
  }
  return 0;
}

TEST(LinearProcesses, ALostRankEndsTheTrainingOfTheOthersWithAnError) {
  auto options = exactly({Loss::kLogistic, 0.01, 0}, 0);  // no gap is small enough
  options.cocoa.stop.max_passes = 100'000'000;
  options.hogwild = {.exchange_rows = 16, .epochs = 100'000'000};
  for (const Rule rule : {Rule::kCocoaPlus, Rule::kHogwild}) {
    for (const auto& hosts : {std::vector<std::string>{}, {"a", "a", "b"}}) {
      options.rule = rule;
      const auto start = std::chrono::steady_clock::now();
      const auto codes = comm::fork_ranks(
          3, "auto", [&](const Group& group) { return train_until_killed(group, options, 2); },
          hosts);
      EXPECT_EQ(codes, (std::vector<int>{42, 42, -SIGKILL})) << static_cast<int>(rule);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    }
  }
}

}  // namespace linear_test
}  // namespace weft::linear
