// Tries layouts with real steps.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"
#include "weft/comm/texts.h"
#include "weft/train/internal/measured.h"
#include "weft/train/planner/internal/auto_planner.h"

namespace weft::train::internal {
namespace {

constexpr double kTrialSeconds = 10;
constexpr double kMaxStep = 20;  // Layouts with longer steps are not tried.
// Layouts whose steps take less than kClose times the best one's are compared by more trials.
constexpr double kClose = 1.12, kCompareSeconds = 6;
constexpr int kMoreTrials = 2, kMoreSteps = 5;
constexpr std::size_t kMaxCompared = 3;

std::vector<PlannedLayout> layouts_of(const std::vector<AutoPlanner::Trials>& tried) {
  std::vector<PlannedLayout> layouts;
  for (const auto& one : tried) layouts.push_back(one.planned);
  return layouts;
}

}  // namespace

// Replaces the prediction by what real steps have shown.
void AutoPlanner::take(PlannedLayout& planned, const ProbedStep& real, const Group& world) const {
  const double memory = real.memory + copies(job_);
  if (world.rank() == 0)
    log_debug("plan: tried", {{"layout", planned.layout},
                              {"predicted_step_s", planned.model_seconds},
                              {"measured_step_s", real.seconds},
                              {"predicted_memory_gib", planned.memory / plan::kGiB},
                              {"measured_memory_gib", memory / plan::kGiB},
                              {"predicted_bytes", planned.traffic},
                              {"measured_bytes", real.traffic}});
  planned.memory = memory;
  use_measured(planned, real);
}

PlannedLayout AutoPlanner::choose(const Task& task, const Options& options, const Group& world) {
  nlohmann::json answer;
  if (world.rank() == 0) {
    try {
      for (const PlannedLayout& one : candidates(job_)) answer["layouts"].push_back(to_json(one));
    } catch (const Error& error) {
      answer["error"] = error.message();
    }
  }
  const std::string text =
      comm::broadcast_text(world, world.rank() == 0 ? answer.dump() : std::string());
  const nlohmann::json read = parse_json(text, "the plan of rank 0", {.depth = 4});
  if (read.contains("error")) throw Error(Errc::kBadConfig, read["error"].get<std::string>());
  const double start = steady_seconds();
  std::vector<Trials> tried;
  const auto add = [&](PlannedLayout planned, const ProbedStep& real) {
    take(planned, real, world);
    tried.push_back({std::move(planned), {real}});
  };
  for (const auto& [layout, real] : probed_) {
    plan::Job job = job_;
    job.layout = layout;
    add(describe(job, {layout, plan::simulate_step(job), 0, ""}), real);
  }
  for (const auto& one : read["layouts"]) {
    PlannedLayout planned = planned_layout(one.get<std::string>());
    const bool known = std::any_of(tried.begin(), tried.end(), [&](const Trials& before) {
      return before.planned.layout == planned.layout;
    });
    if (known) continue;
    if (planned.model_seconds > kMaxStep) {
      if (tried.empty()) return planned;  // the fastest one by the model
      continue;
    }
    if (!tried.empty() && largest_numbers(world, {steady_seconds() - start})[0] > kTrialSeconds)
      break;
    add(planned, try_out(planned, task, options, world));
  }
  compare(tried, task, options, world);
  PlannedLayout best = best_of(layouts_of(tried), codecs());
  best.tried = static_cast<int>(tried.size());
  return best;
}

// The machine's speed changes by some percent within seconds. So layouts that are about as fast as
// the best one take turns with it, and the medians of their trials count.
void AutoPlanner::compare(std::vector<Trials>& tried, const Task& task, const Options& options,
                          const Group& world) const {
  const double best = best_of(layouts_of(tried), codecs()).seconds;
  std::vector<Trials*> close;
  for (Trials& one : tried)
    if (one.planned.seconds < kClose * best) close.push_back(&one);
  std::sort(close.begin(), close.end(), [](const Trials* a, const Trials* b) {
    return a->planned.seconds < b->planned.seconds;
  });
  if (close.size() > kMaxCompared) close.resize(kMaxCompared);
  if (close.size() < 2) return;
  const double start = steady_seconds();
  double round_s = 0;
  for (const Trials* one : close)
    round_s += (ProbeOptions{}.warm + kMoreSteps) * one->planned.seconds;
  for (int round = 0; round < kMoreTrials; ++round) {
    if (largest_numbers(world, {steady_seconds() - start})[0] + round_s > kCompareSeconds) break;
    for (Trials* one : close)
      one->steps.push_back(try_out(one->planned, task, options, world, {.least = kMoreSteps}));
  }
  for (Trials* one : close) {
    const auto middle = one->steps.begin() + static_cast<std::ptrdiff_t>(one->steps.size() / 2);
    std::nth_element(
        one->steps.begin(), middle, one->steps.end(),
        [](const ProbedStep& a, const ProbedStep& b) { return a.seconds < b.seconds; });
    take(one->planned, *middle, world);
  }
}

}  // namespace weft::train::internal
