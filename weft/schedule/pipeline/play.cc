#include "weft/schedule/pipeline/play.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/schedule/pipeline/internal/needs.h"

namespace weft::schedule::pipeline {
namespace {

// Advances each rank in turn as far as possible, until no rank can go on.
std::vector<std::vector<Span>> spans_of(const Schedule& schedule, std::span<const Costs> costs) {
  const std::size_t ranks = schedule.actions.size();
  internal::Results results(schedule.request, costs);
  std::vector<std::vector<Span>> spans(ranks);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto& actions = schedule.actions[r];
      while (spans[r].size() < actions.size()) {
        const Action& action = actions[spans[r].size()];
        const auto ready = results.ready(action);
        if (!ready) break;
        const double begin = std::max(*ready, spans[r].empty() ? 0 : spans[r].back().end);
        spans[r].push_back(
            {begin,
             begin + internal::cost_of(internal::of_stage(costs, action.stage), action.work)});
        results.done(action, spans[r].back().end);
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    WEFT_CHECK(spans[r].size() == schedule.actions[r].size(),
               "rank " + std::to_string(r) + " waits for ever for what " +
                   describe(schedule.actions[r][spans[r].size()]) + " needs");
  }
  return spans;
}

}  // namespace

Timing play_stages(const Schedule& schedule, std::span<const Costs> by_stage) {
  WEFT_REQUIRE(
      by_stage.size() == 1 || static_cast<int>(by_stage.size()) == num_stages(schedule.request),
      "a pipeline of " + std::to_string(num_stages(schedule.request)) +
          " stages needs the costs of each, or one for all; " + std::to_string(by_stage.size()) +
          " were given");
  for (const Costs& costs : by_stage) {
    WEFT_REQUIRE(costs.forward > 0 && costs.backward_input > 0 && costs.backward_weight > 0 &&
                     costs.message >= 0,
                 "costs of a pipeline must be positive, and the cost of a message must not be "
                 "negative");
  }
  Timing timing{.spans = spans_of(schedule, by_stage)};
  double all = 0;
  std::vector<double> busy;
  for (const auto& spans : timing.spans) {
    double sum = 0;
    for (const Span& span : spans) sum += span.end - span.begin;
    busy.push_back(sum);
    all += sum;
    if (spans.empty()) continue;
    timing.makespan = std::max(timing.makespan, spans.back().end);
    const double took = spans.back().end - spans.front().begin;
    if (took <= timing.iteration) continue;
    timing.iteration = took;
    timing.bubble = took - sum;
  }
  if (timing.makespan <= 0) return timing;
  for (const double sum : busy) timing.idle.push_back(std::max(0.0, 1 - sum / timing.makespan));
  timing.idle_share = std::max(0.0, 1 - all / (timing.makespan * static_cast<double>(busy.size())));
  return timing;
}

}  // namespace weft::schedule::pipeline
