// What ranks agree on in one look of the training loop, and what they tell the launcher. The
// launcher's wish for another number of ranks comes over a link, so each test forks its ranks.
#include "weft/train/internal/loop.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/elastic/newest_state.h"
#include "weft/elastic/recovery.h"
#include "weft/parallel/compose/modules.h"
#include "weft/rank_link/messages.h"

namespace weft::train::internal {
namespace loop_test {

constexpr std::int64_t kLookEvery = 64;

// Ends a run as the loss of a rank does.
struct RankLost {};

struct End {
  std::optional<TrainResult> result;
  int ranks = 0;  // That the job shall have.
  bool changes_plan = false;
  std::int64_t departed_at = 0;  // Step at which another plan was asked for. 0: none was.
  bool has_lost = false;         // It has ended by RankLost.
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
    totals_.reset();
    return run(name, factor, std::nullopt);
  }

  // After the loss of a rank, from the newest copy of the last run.
  End go_on() {
    options.resume = true;
    End end;
    elastic::use_newest_state(world_, {.copies = {copies_}},
                              [&](std::optional<elastic::Recovered> state, const std::string&) {
                                end = run(options.name, 1, Saved(std::move(state.value().reader)));
                              });
    return end;
  }

  bool has_checkpoint(const std::string& name, const std::string& step) const {
    return std::filesystem::exists(folder_ / (name + "/ckpt/step-" + step));
  }

  // Of the last run, and of the runs that it has gone on from.
  const TrainingSpeed::Totals& totals() const { return totals_.value(); }

  Options options;

 private:
  End run(const std::string& name, double factor, std::optional<Saved> state) {
    options.name = name;
    const Config config = config_of(options);
    const Mesh mesh(world_, options.mesh.axes());
    Loop loop(options, config, world_, /*copies=*/true);
    Task task(parallel::blocks_of(torch::nn::Linear(1, 1)),
              [factor](const at::Tensor& y, const at::Tensor&) { return factor * y.mean(); });
    task.train = samples(at::zeros({2000, 1}), at::zeros({2000, 1}));
    if (totals_) loop.go_on_from(*totals_);
    loop.open(std::move(state));
    Learner learner(std::move(task), options, mesh, loop.resumed() ? &*loop.resumed() : nullptr,
                    nullptr);
    End end;
    loop.start(learner, [](const Evaluation&, double) { return std::vector<LogField>{}; });
    copies_ = loop.copies();
    loop.watch_plan({.step = 1e-9}, [&](const Departure&, std::int64_t) {
      end.departed_at = learner.model().steps();
      return true;
    });
    try {
      end.result = loop.run();
    } catch (const RankLost&) {  // here, as an exception that leaves a model's scope ends its group
      end.has_lost = true;
    }
    totals_ = loop.totals();
    end.ranks = loop.resize();
    end.changes_plan = loop.changes_plan();
    return end;
  }

  const Group world_;
  const TempDir folder_;
  rank_link::Link& to_rank_;
  std::shared_ptr<const elastic::StateCopies> copies_;  // Of the last run.
  std::optional<TrainingSpeed::Totals> totals_;
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
    const End skips = runs.train("skips", std::numeric_limits<double>::quiet_NaN());
    if (skips.result || skips.ranks != 2) return "the number of ranks stays if steps are skipped";
    if (!runs.has_checkpoint("skips", "00000064")) return "there is none if steps are skipped";
    stops = true;
    const End end = runs.train("stops");
    return end.result && end.result->ended_early ? "" : "training goes on";
  });
}

// Callbacks are called before the copy of a step, and not again after a recovery from it.
TEST(Loop, KeepsWhatACallbackAsksForInAStepWhoseCopyARecoveryGoesOnFrom) {
  expect_good([](Runs& runs) -> std::string {
    runs.options.copy_steps = 1;
    runs.options.max_steps = 5;
    runs.options.checkpoint_every = 0;
    runs.options.on_step = [](const StepReport& report, Control& control) {
      if (report.step == 2) control.save();
      if (report.step == 3) throw RankLost();
    };
    if (!runs.train("lost").has_lost) return "training goes on";
    runs.options.on_step = [](const StepReport&, Control&) {};
    runs.go_on();
    return runs.has_checkpoint("lost", "00000003") ? "" : "there is no checkpoint";
  });
}

// Step 3 is done again.
TEST(Loop, CountsTheTimeAndTheSamplesBeforeARecovery) {
  expect_good([](Runs& runs) -> std::string {
    runs.options.copy_steps = 1;
    runs.options.max_steps = 5;
    runs.options.checkpoint_every = 0;
    runs.options.on_step = [](const StepReport& report, Control&) {
      if (report.step == 3) throw RankLost();
    };
    if (!runs.train("lost").has_lost) return "training goes on";
    const TrainingSpeed::Totals before = runs.totals();
    if (before.samples != 3 || before.seconds <= 0) return "the steps before are not counted";
    runs.options.on_step = [](const StepReport&, Control&) {};
    const auto result = runs.go_on().result.value();
    const TrainingSpeed::Totals& all = runs.totals();
    if (all.samples != 6 || all.seconds <= before.seconds) return "the counts begin anew";
    if (all.started != before.started) return "the time begins anew";
    return result.samples_per_s == all.samples / all.seconds ? "" : "another mean is shown";
  });
}

// Returns the error of a run's last save after `harm` was done to the group.
std::optional<Error> last_save(
    const Group& group, const std::string& folder, const std::function<void(const Group&)>& harm,
    const std::function<void(RunSaver&)>& end = [](RunSaver& saver) { saver.finish(); }) {
  set_log_level(LogLevel::kOff);
  parallel::BlockModel blocks = parallel::blocks_of(torch::nn::Linear(1, 1));
  blocks.loss = [](const parallel::Tensors& y, const parallel::Tensors&,
                   const parallel::Contexts&) { return y[0].mean(); };
  try {
    auto model = parallel::parallelize(blocks, {}, Mesh(group, {{"dp", 0}}));
    RunSaver saver(group, model.shards(),
                   {.folder = group.rank() == 0 ? folder : "", .async = false});
    harm(group);
    saver.save(shards_of(model.shards(), {.step = 1}));
    end(saver);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void lose_rank_1(const Group& group) {
  if (group.rank() == 1) ::_exit(0);
}

// Else the state is copied after it, and a recovery from the copy takes the best step for saved.
TEST(Loop, SettlesWithTheLossOfARankThatItHasLoggedBefore) {
  const TempDir folder;
  const auto codes = comm::fork_ranks(2, "auto", [&](const Group& group) {
    const auto error = last_save(group, folder / "ckpt", lose_rank_1, [](RunSaver& saver) {
      saver.poll();  // save() has ended with the error
      saver.settle();
    });
    return error && elastic::is_loss(*error) ? 0 : 1;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

// Returns whether a rank tells the launcher that the last checkpoint could not be written.
// `is_loss`: of the error that the ranks get.
bool says_unsaved(const std::string& folder, bool is_loss,
                  const std::function<void(const Group&)>& harm) {
  auto link = rank_link::Link::make();
  ::setenv(rank_link::kLinkVariable, std::to_string(link.second.fd()).c_str(), 1);
  const auto codes = comm::fork_ranks(2, "auto", [&](const Group& group) {
    const auto error = last_save(group, folder, harm);
    return error && elastic::is_loss(*error) == is_loss ? 0 : 1;
  });
  ::unsetenv(rank_link::kLinkVariable);
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
  bool says = false;
  while (const auto text = link.first.next()) {
    const auto message = rank_link::decode<rank_link::RankMessage>(*text);
    says = says || (message && std::holds_alternative<rank_link::Unsaved>(*message));
  }
  return says;
}

// After this message the launcher replaces no rank, since all would be done again.
TEST(Loop, CallsItsLastStateUnsavedAfterAnErrorOfTheDiskAndNotAfterALoss) {
  const TempDir folder;
  write_file_atomic(folder / "file", "in the way");
  EXPECT_TRUE(says_unsaved(folder / "file", /*is_loss=*/false, [](const Group&) {}));
  EXPECT_FALSE(says_unsaved(folder / "ckpt", /*is_loss=*/true, lose_rank_1));
}

}  // namespace loop_test
}  // namespace weft::train::internal
