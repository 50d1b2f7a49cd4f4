// What ranks agree on in one look of the training loop. The launcher's wish for another number of
// ranks comes over a link, so each test forks its rank.
#include "weft/train/internal/loop.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/compose/modules.h"
#include "weft/rank_link/messages.h"

namespace weft::train::internal {
namespace loop_test {

constexpr std::int64_t kLookEvery = 64;

struct End {
  std::optional<TrainResult> result;
  int ranks = 0;  // That the job shall have.
  bool changes_plan = false;
  std::int64_t departed_at = 0;  // Step at which another plan was asked for. 0: none was.
};

// Runs of one rank. A step is planned to take no time, so steps leave their plan.
class Runs {
 public:
  Runs(const Group& world, rank_link::Link& to_rank) : world_(world), to_rank_(to_rank) {
    set_log_level(LogLevel::kOff);
    options.batch = 1;
    options.epochs = 1;
    options.log_every = kLookEvery;
    options.max_not_finite = 0;
    options.copy_steps = 1'000'000;
    options.checkpoint_async = false;
    options.prefetch = 0;
    options.mesh = "dp=1";
    options.dir = folder_.path();
  }

  // The launcher asks for two ranks.
  void ask_for_ranks() {
    rank_link::tell(to_rank_, rank_link::RanksWanted{.number = 2, .newcomers = {}});
  }

  End train(const std::string& name, double factor = 1) {
    options.name = name;
    const Config config = config_of(options);
    const Mesh mesh(world_, options.mesh.axes());
    Loop loop(options, config, world_, /*copies=*/true);
    Task task(parallel::blocks_of(torch::nn::Linear(1, 1)),
              [factor](const at::Tensor& y, const at::Tensor&) { return factor * y.mean(); });
    task.train = samples(at::zeros({2000, 1}), at::zeros({2000, 1}));
    loop.open();
    Learner learner(std::move(task), options, mesh, nullptr, nullptr);
    End end;
    loop.start(learner, [](const Evaluation&, double) { return std::vector<LogField>{}; });
    loop.watch_plan({.step = 1e-9}, [&](const Departure&, std::int64_t) {
      end.departed_at = learner.model().steps();
      return true;
    });
    end.result = loop.run();
    end.ranks = loop.resize();
    end.changes_plan = loop.changes_plan();
    return end;
  }

  bool has_checkpoint(const std::string& name, const std::string& step) const {
    return std::filesystem::exists(folder_ / (name + "/ckpt/step-" + step));
  }

  Options options;

 private:
  const Group world_;
  const TempDir folder_;
  rank_link::Link& to_rank_;
};

// `fn` returns what is wrong; empty: nothing is.
void expect_good(const std::function<std::string(Runs& runs)>& fn) {
  auto link = rank_link::Link::make();
  ::setenv(rank_link::kLinkVariable, std::to_string(link.second.fd()).c_str(), 1);
  const auto on_rank = [&](const Group& world) {
    Runs runs(world, link.first);
    const std::string wrong = fn(runs);
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    return wrong.empty() ? 0 : 1;
  };
  EXPECT_EQ(comm::fork_ranks(1, "auto", on_rank), std::vector<int>{0});
  ::unsetenv(rank_link::kLinkVariable);
}

// The ranks go on from copies in memory then, and there is no checkpoint of this step.
TEST(Loop, ChangesTheNumberOfRanksAndNotThePlanIfBothAreDueAtOnce) {
  expect_good([](Runs& runs) -> std::string {
    const End first = runs.train("first");
    if (first.result || !first.changes_plan) return "the steps have not left their plan";
    runs.options.on_step = [&](const StepReport& report, Control&) {
      if (report.step == first.departed_at - 1) runs.ask_for_ranks();
    };
    const End both = runs.train("both");
    if (both.result || both.ranks != 2) return "the number of ranks stays";
    return both.changes_plan ? "the plan changes, too" : "";
  });
}

TEST(Loop, ChangesNoPlanWhileTheLossIsNotFinite) {
  expect_good([](Runs& runs) -> std::string {
    if (runs.train("finite").departed_at == 0) return "the steps have not left their plan";
    const End end = runs.train("nan", std::numeric_limits<double>::quiet_NaN());
    return end.result && end.departed_at == 0 ? "" : "a checkpoint of such weights was wanted";
  });
}

// Callbacks are called after the ranks have agreed, and the session ends with this step.
TEST(Loop, KeepsWhatACallbackAsksForInTheStepBeforeTheNumberOfRanksChanges) {
  expect_good([](Runs& runs) -> std::string {
    bool stops = false;
    runs.options.checkpoint_every = 0;
    runs.options.on_step = [&](const StepReport& report, Control& control) {
      if (report.step == 1) runs.ask_for_ranks();
      if (report.step != kLookEvery) return;
      if (stops) {
        control.stop();
      } else {
        control.save();
      }
    };
    const End saves = runs.train("saves");
    if (saves.result || saves.ranks != 2) return "the number of ranks stays";
    if (!runs.has_checkpoint("saves", "00000064")) return "there is no checkpoint";
    stops = true;
    const End end = runs.train("stops");
    return end.result && end.result->ended_early ? "" : "training goes on";
  });
}

}  // namespace loop_test
}  // namespace weft::train::internal
