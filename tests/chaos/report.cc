#include "tests/chaos/report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "weft/observe/report/page.h"

namespace weft::chaos {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kPoints = 1000;

constexpr const char* kPage =
#include "tests/chaos/internal/page.inc"
    ;

json number(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

// Every kind's times, and those of the faults that lose a rank together.
struct Times {
  std::vector<double> named_s, next_step_s, caught_up_s;

  void add(const FaultResult& result) {
    if (result.named_s) named_s.push_back(*result.named_s);
    if (result.next_step_s) next_step_s.push_back(*result.next_step_s);
    if (result.caught_up_s) caught_up_s.push_back(*result.caught_up_s);
  }
};

json spread(const std::vector<double>& values) {
  return {{"count", values.size()},
          {"p50", number(percentile(values, 0.5))},
          {"p99", number(percentile(values, 0.99))},
          {"max", number(percentile(values, 1))}};
}

json json_of(const Times& times) {
  return {{"named_s", spread(times.named_s)},
          {"next_step_s", spread(times.next_step_s)},
          {"caught_up_s", spread(times.caught_up_s)}};
}

std::map<FaultKind, Times> times_by_kind(const Outcome& outcome) {
  std::map<FaultKind, Times> by_kind;
  for (const PlanOutcome& plan : outcome.plans) {
    for (std::size_t i = 0; i < plan.verdict.faults.size(); ++i)
      by_kind[plan.disturbed.faults[i].fault.kind].add(plan.verdict.faults[i]);
  }
  return by_kind;
}

json json_of(const Applied& applied, const FaultResult& result) {
  return {{"kind", to_string(applied.fault.kind)},
          {"victim", applied.fault.victim},
          {"pid", applied.pid},
          {"at_s", applied.at_s},
          {"after_step", applied.step},
          {"lasts_s", applied.fault.lasts_s},
          {"failpoint", applied.fault.failpoint},
          {"reached", applied.reached},
          {"named_s", number(result.named_s)},
          {"next_step_s", number(result.next_step_s)},
          {"caught_up_s", number(result.caught_up_s)},
          {"redone", result.redone},
          {"problem", result.problem}};
}

// Time and step of the finished steps, thinned out.
json progress_of(const JobRecord& record) {
  const auto finished = finished_steps(record.steps);
  const std::size_t every = finished.size() / kPoints + 1;
  json points = json::array();
  for (std::size_t i = 0; i < finished.size(); i += every)
    points.push_back({finished[i].at_s, finished[i].step});
  return points;
}

// The spans of time in which a rank finishes steps. A pause of several steps ends one.
json lanes_of(const JobRecord& record) {
  std::map<int, std::vector<double>> times;
  std::vector<double> gaps;
  for (const RankStep& one : record.steps) {
    auto& of_rank = times[one.rank];
    if (!of_rank.empty()) gaps.push_back(one.at_s - of_rank.back());
    of_rank.push_back(one.at_s);
  }
  const double longest = std::max(0.05, 5 * percentile(gaps, 0.5).value_or(0));
  json lanes = json::array();
  for (const auto& [rank, at] : times) {
    json spans = json::array();
    double begin = at.front();
    for (std::size_t i = 0; i < at.size(); ++i) {
      const bool ends = i + 1 == at.size() || at[i + 1] - at[i] > longest;
      if (!ends) continue;
      spans.push_back({begin, at[i]});
      if (i + 1 < at.size()) begin = at[i + 1];
    }
    lanes.push_back({{"rank", rank}, {"spans", spans}});
  }
  return lanes;
}

json json_of(const PlanOutcome& plan) {
  const Verdict& verdict = plan.verdict;
  json faults = json::array();
  for (std::size_t i = 0; i < verdict.faults.size(); ++i)
    faults.push_back(json_of(plan.disturbed.faults[i], verdict.faults[i]));
  return {{"name", plan.name},
          {"settings", plan.settings},
          {"ranks", plan.ranks},
          {"passed", verdict.problems.empty()},
          {"problems", verdict.problems},
          {"steps", verdict.steps},
          {"redone_steps", verdict.redone},
          {"digest", plan.disturbed.digest},
          {"undisturbed_digest", plan.undisturbed.digest},
          {"same_digest", verdict.same_digest},
          {"exit_code", plan.disturbed.exit_code},
          {"timed_out", plan.disturbed.timed_out},
          {"positions", plan.disturbed.positions},
          {"leftovers", plan.disturbed.leftovers},
          {"wall_s", verdict.wall_s},
          {"useful_s", verdict.useful_s},
          {"undisturbed_step_s", plan.undisturbed_step_s},
          {"calm_step_s", number(verdict.calm_step_s)},
          {"goodput", verdict.goodput},
          {"interrupted", verdict.interrupted},
          {"seconds", plan.disturbed.ended_s},
          {"faults", faults},
          {"progress", progress_of(plan.disturbed)},
          {"undisturbed_progress", progress_of(plan.undisturbed)},
          {"lanes", lanes_of(plan.disturbed)}};
}

json summary_of(const Outcome& outcome) {
  std::size_t faults = 0, reached = 0, recovered = 0, passed = 0;
  std::int64_t redone = 0;
  Times losses;
  for (const PlanOutcome& plan : outcome.plans) {
    passed += plan.verdict.problems.empty() ? 1 : 0;
    redone += plan.verdict.redone;
    for (std::size_t i = 0; i < plan.verdict.faults.size(); ++i) {
      const Applied& applied = plan.disturbed.faults[i];
      const FaultResult& result = plan.verdict.faults[i];
      ++faults;
      reached += applied.reached ? 1 : 0;
      recovered += result.problem.empty() ? 1 : 0;
      if (loses_a_rank(applied.fault.kind)) losses.add(result);
    }
  }
  json kinds = json::object();
  for (const auto& [kind, times] : times_by_kind(outcome)) kinds[to_string(kind)] = json_of(times);
  return {{"plans", outcome.plans.size()},
          {"passed", passed},
          {"faults", faults},
          {"reached", reached},
          {"recovered", recovered},
          {"redone_steps", redone},
          {"lost_ranks", json_of(losses)},
          {"by_kind", kinds}};
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string seconds(const std::vector<double>& values, double share) {
  const auto value = percentile(values, share);
  return value ? format("%.3f", *value) : "-";
}

void add_row(std::string& text, const std::vector<std::string>& cells) {
  static constexpr std::size_t kWidths[] = {14, 7, 10, 10, 10, 10, 10, 8};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    line += cells[i];
    if (i + 1 < cells.size())
      line += std::string(cells[i].size() < kWidths[i] ? kWidths[i] - cells[i].size() : 1, ' ');
  }
  text += line + "\n";
}

}  // namespace

int exit_code(const Outcome& outcome) {
  bool passed = true, happened = !outcome.plans.empty();
  for (const PlanOutcome& plan : outcome.plans) {
    passed = passed && plan.verdict.problems.empty();
    happened = happened && plan.verdict.faults_happened;
  }
  return !happened ? 3 : passed ? 0 : 1;
}

std::string to_text(const Outcome& outcome) {
  std::string text;
  add_row(text, {"plan", "faults", "next p50", "next p99", "next max", "redone", "goodput",
                 "weights", "result"});
  for (const PlanOutcome& plan : outcome.plans) {
    Times times;
    for (const FaultResult& result : plan.verdict.faults) times.add(result);
    add_row(text,
            {plan.name, std::to_string(plan.verdict.faults.size()), seconds(times.next_step_s, 0.5),
             seconds(times.next_step_s, 0.99), seconds(times.next_step_s, 1),
             std::to_string(plan.verdict.redone), format("%.1f %%", 100 * plan.verdict.goodput),
             plan.verdict.same_digest ? "equal" : "differ",
             plan.verdict.problems.empty() ? "passed" : "FAILED"});
  }
  text += "\nseconds from the fault until\n";
  add_row(text, {"fault", "count", "named p50", "named max", "next p50", "next p99", "next max",
                 "caught up p50"});
  for (const auto& [kind, times] : times_by_kind(outcome))
    add_row(text, {to_string(kind), std::to_string(times.next_step_s.size()),
                   seconds(times.named_s, 0.5), seconds(times.named_s, 1),
                   seconds(times.next_step_s, 0.5), seconds(times.next_step_s, 0.99),
                   seconds(times.next_step_s, 1), seconds(times.caught_up_s, 0.5)});
  for (const PlanOutcome& plan : outcome.plans) {
    for (const std::string& problem : plan.verdict.problems)
      text += plan.name + ": " + problem + "\n";
    for (const std::string& position : plan.disturbed.positions) text += position;
  }
  return text;
}

std::string to_json(const Outcome& outcome) {
  json plans = json::array();
  for (const PlanOutcome& plan : outcome.plans) plans.push_back(json_of(plan));
  const json document = {{"command", outcome.command},
                         {"seed", outcome.seed},
                         {"exit_code", exit_code(outcome)},
                         {"summary", summary_of(outcome)},
                         {"plans", plans}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string to_html(const std::string& text) { return observe::fill_page(kPage, text); }

}  // namespace weft::chaos
