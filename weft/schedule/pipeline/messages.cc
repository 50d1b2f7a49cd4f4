// The global order is the order of times in play(), so it follows the dependencies. An action
// begins when its inputs are there, and its result's message stands where the action ends. Costs of
// actions are above zero, so each action stands before its message, and each message before the
// action that needs it. The bounds on costs and on the number of actions (pipeline.cc) keep this
// true in float64.
//
// Events at one time: messages come before actions, since a message may be needed by an action that
// begins then. Ties among messages are broken by ranks and actions, alike in all lists. Each rank's
// list is a part of the global order, with both ends of a message at one event. So two ranks never
// list two messages between them in opposite orders.
#include "weft/schedule/pipeline/messages.h"

#include <algorithm>
#include <tuple>

#include "weft/schedule/pipeline/internal/needs.h"
#include "weft/schedule/pipeline/play.h"

namespace weft::schedule::pipeline {
namespace {

// One event of the global order. At the same time messages come before actions, so an action that
// needs a message begins when the message arrives.
struct Event {
  double at = 0;
  bool computes = false;
  int rank = 0;  // rank that computes or sends
  int peer = -1;
  Action action;

  auto key() const {
    return std::tuple(at, computes, rank, peer, action.stage, action.micro_batch);
  }
};

}  // namespace

std::vector<std::vector<Step>> steps(const Schedule& schedule) {
  const Request& q = schedule.request;
  const Timing timing = play(schedule, q.costs);
  std::vector<Event> events;
  for (int rank = 0; rank < q.ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < schedule.actions[r].size(); ++i) {
      const Action& action = schedule.actions[r][i];
      events.push_back({timing.spans[r][i].begin, true, rank, -1, action});
      const auto next = internal::needed_by(q, action);
      const int peer = next ? rank_of(q, *next) : rank;
      if (peer != rank) events.push_back({timing.spans[r][i].end, false, rank, peer, action});
    }
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.key() < b.key(); });
  std::vector<std::vector<Step>> result(static_cast<std::size_t>(q.ranks));
  for (const Event& event : events) {
    auto& own = result[static_cast<std::size_t>(event.rank)];
    own.push_back({event.computes ? Kind::kCompute : Kind::kSend, event.action, event.peer});
    if (!event.computes)
      result[static_cast<std::size_t>(event.peer)].push_back(
          {Kind::kReceive, event.action, event.rank});
  }
  return result;
}

int waiting(const std::vector<Step>& steps_of_rank, const Request& request) {
  int now = 0, most = 0;
  for (const Step& step : steps_of_rank) {
    if (step.kind == Kind::kReceive) most = std::max(most, ++now);
    if (step.kind != Kind::kCompute) continue;
    const auto stage = internal::needs_stage(request, step.action);
    if (stage && rank_of(request, *stage) != rank_of(request, step.action.stage)) --now;
  }
  return most;
}

Traffic traffic(const Schedule& schedule) {
  Traffic result;
  for (const auto& actions : schedule.actions) {
    const auto sends = std::count_if(actions.begin(), actions.end(), [&](const Action& action) {
      const auto next = internal::needed_by(schedule.request, action);
      return next && rank_of(schedule.request, *next) != rank_of(schedule.request, action.stage);
    });
    result.total += sends;
    result.busiest = std::max<std::int64_t>(result.busiest, sends);
  }
  return result;
}

}  // namespace weft::schedule::pipeline
