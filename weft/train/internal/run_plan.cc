#include "weft/train/internal/run_plan.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/comm/texts.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/probe.h"

namespace weft::train::internal {
namespace {

constexpr const char* kOrigin = "parallel.plan = \"auto\"";
// A layout that the model alone prefers must promise to be faster by this share; one that was tried
// must have been by that share.
constexpr double kMinGain = 0.1, kMinTriedGain = 0.05;
constexpr double kGiB = 1 << 30;
// Steps that a trial takes about.
constexpr double kTrialSteps = 6;

std::string short_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

double four_digits(double value) { return std::atof(short_text(value).c_str()); }

std::string names_of(const std::vector<PlannedLayout>& layouts) {
  std::string names;
  for (const PlannedLayout& one : layouts) names += (names.empty() ? "" : "; ") + one.layout;
  return names;
}

double percent(double predicted, double measured) {
  return std::round(100 * (predicted / measured - 1));
}

}  // namespace

RunPlan::Mode RunPlan::mode_of(const Options& options) {
  if (options.mesh.is_auto()) return Mode::kAuto;
  return options.predict_plan ? Mode::kPredict : Mode::kNone;
}

RunPlan::RunPlan(const Options& options, const Config& config, bool is_recipe)
    : mode_(mode_of(options)),
      is_recipe_(is_recipe),
      given_(options),
      given_config_(config),
      options_(options),
      config_(config) {
  check_plan_keys(config);
  if (is_on()) planner_of(given_, is_auto() ? kOrigin : "parallel.plan = \"predict\"");
}

void RunPlan::begin(const Task& task, const Group& world) {
  if (!is_on()) return;
  const double start = steady_seconds();
  planner_ = planner_of(given_, kOrigin).make(given_config_, is_recipe_);
  std::optional<KeptValues> kept;
  if (!is_recipe_) kept.emplace(task.model);
  planner_->measure(task, given_, world);
  apply(is_auto() ? planner_->choose(task, given_, world)
                  : planner_->predict(given_, world.size()));
  if (kept) kept->restore();
  if (world.rank() == 0) say(steady_seconds() - start);
}

void RunPlan::apply(const PlannedLayout& planned) {
  planned_ = planned;
  if (!is_auto()) return;
  options_ = given_;
  set_plan(options_, planned.keys);
  // A rank that becomes slow gets smaller parts of the batches.
  if (options_.on_straggler == OnStraggler::kWarn) options_.on_straggler = OnStraggler::kRebalance;
  config_ = is_recipe_ ? given_config_ : config_of(options_);
  if (!is_recipe_) return;
  set_plan_keys(config_, planned.keys, kOrigin);
  config_.set("parallel.plan=\"manual\"", kOrigin);  // a resumed run keeps this plan
}

void RunPlan::say(double planning_s) const {
  std::vector<LogField> fields{{"layout", planned_->layout},
                               {"step_s", four_digits(planned_->seconds)},
                               {"memory_gib", four_digits(planned_->memory / kGiB)},
                               {"bytes", std::round(planned_->traffic)},
                               {"model_step_s", four_digits(planned_->model_seconds)},
                               {"tried", planned_->tried}};
  if (planning_s > 0) fields.emplace_back("planned_in_s", std::round(planning_s * 10) / 10);
  log_info("plan", fields);
}

// A rank that has measured, else one that has the plan.
int RunPlan::first_that_knows(const Group& world) const {
  const auto all = comm::all_gather_texts(world, planner_ ? "measured" : planned_ ? "plan" : "");
  for (const char* wanted : {"measured", "plan"}) {
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] == wanted) return static_cast<int>(rank);
  }
  throw Error(Errc::kUnavailable, "no rank is left that knows the run's plan; resume the run");
}

void RunPlan::again(const Group& world) {
  if (!is_auto()) return;
  const int root = first_that_knows(world);
  std::string text;
  if (world.rank() == root) {
    PlannedLayout next = *planned_;
    if (next.ranks != world.size()) {
      next = all_replicas(world.size());
      try {
        if (planner_) next = planner_->again(world.size());
      } catch (const Error& error) {
        log_warn("no plan for " + counted(world.size(), "rank") + ": " + error.message() +
                 "; all ranks are replicas");
      }
    }
    text = to_json(next);
  }
  const PlannedLayout next = planned_layout(comm::broadcast_text(world, text, root));
  const bool changes = !planned_ || planned_->ranks != next.ranks;
  apply(next);
  if (changes && world.rank() == 0) say(0);
}

bool RunPlan::helps(const Departure& departure, std::int64_t steps_left, double cost,
                    const Group& world) {
  const int root = first_that_knows(world);
  nlohmann::json found = nlohmann::json::array();
  if (world.rank() == root && planner_ && departure.cause != Cause::kSlowRank) {
    try {
      double trials = cost;
      for (const PlannedLayout& next : planner_->again(*planned_, departure)) {
        trials += kTrialSteps * next.seconds;
        const double gain = departure.measured.step - next.seconds;
        const bool pays = gain > kMinGain * departure.measured.step &&
                          gain * static_cast<double>(steps_left) > trials;
        if (pays && next.keys != planned_->keys) found.push_back(to_json(next));
      }
    } catch (const Error& error) {
      log_debug("plan: " + error.message());
    }
  }
  next_.clear();
  const std::string text = comm::broadcast_text(world, found.dump(), root);
  for (const auto& one : parse_json(text, "the plans of a rank", {.depth = 2}))
    next_.push_back(planned_layout(one.get<std::string>()));
  if (next_.empty()) return false;
  before_next_ = departure.measured;
  if (world.rank() == 0)
    log_info(next_.size() == 1 ? "another plan may be faster, and is tried"
                               : "other plans may be faster, and are tried",
             {{"layouts", names_of(next_)}});
  return true;
}

void RunPlan::try_next(const Task& task, const Group& world) {
  if (next_.empty()) return;
  std::vector<PlannedLayout> tried = std::exchange(next_, {});
  std::optional<KeptValues> kept;
  if (!is_recipe_) kept.emplace(task.model);
  std::string times;
  for (PlannedLayout& next : tried) {
    const double predicted = next.seconds;
    use_measured(next, try_out(next, task, given_, world));
    next.tried = static_cast<int>(tried.size());
    times += next.layout + " takes " + short_text(next.seconds) +
             " s a step (predicted: " + short_text(predicted) + " s), ";
  }
  if (kept) kept->restore();
  times += "the present one " + short_text(before_next_.step) + " s";
  const PlannedLayout best = best_of(tried, {});
  if (best.seconds < (1 - kMinTriedGain) * before_next_.step) {
    if (world.rank() == 0)
      log_warn("training goes on with another plan: " + best.layout + "; " + times);
    return apply(best);
  }
  if (world.rank() == 0) log_info("the plan stays: " + times);
  planned_->parts = before_next_;
}

void RunPlan::report(const MeasuredRun& measured) const {
  if (measured.seconds <= 0) return;
  std::vector<LogField> fields;
  const auto add = [&](const std::string& name, double value) {
    fields.emplace_back(name, four_digits(value));
  };
  const bool predicted = planned_ && planned_->seconds > 0;
  if (predicted) add("predicted_step_s", planned_->seconds);
  add("measured_step_s", measured.seconds);
  if (predicted) fields.emplace_back("error_percent", percent(planned_->seconds, measured.seconds));
  if (predicted && measured.memory > 0) add("predicted_memory_gib", planned_->memory / kGiB);
  if (measured.memory > 0) add("measured_memory_gib", measured.memory / kGiB);
  if (predicted) fields.emplace_back("predicted_bytes", std::round(planned_->traffic));
  if (measured.has_traffic) fields.emplace_back("measured_bytes", std::round(measured.traffic));
  if (predicted) add("model_step_s", planned_->model_seconds);
  log_info(predicted ? "plan and measurement" : "measured", fields);
}

}  // namespace weft::train::internal
