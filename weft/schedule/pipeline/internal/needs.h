// Dependencies between the actions of a pipeline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline::internal {

// Index of a stage and micro-batch in a table of results.
inline std::size_t place_of(const Request& q, const Action& action) {
  return static_cast<std::size_t>(action.stage) * static_cast<std::size_t>(q.micro_batches) +
         static_cast<std::size_t>(action.micro_batch);
}
inline std::size_t num_places(const Request& q) {
  return static_cast<std::size_t>(num_stages(q)) * static_cast<std::size_t>(q.micro_batches);
}

inline bool is_backward(Work work) {
  return work == Work::kBackward || work == Work::kBackwardInput;
}

// Stage whose result of the same kind the action needs: the activations of the previous stage or
// the gradient of the next one. None for the first stage's forward, the last stage's backward
// (which needs its own forward) and backward-weights.
inline std::optional<int> needs_stage(const Request& q, const Action& action) {
  if (action.work == Work::kForward && action.stage > 0) return action.stage - 1;
  if (is_backward(action.work) && action.stage + 1 < num_stages(q)) return action.stage + 1;
  return std::nullopt;
}

// Stage that needs the action's result, if there is one.
inline std::optional<int> needed_by(const Request& q, const Action& action) {
  if (action.work == Work::kForward && action.stage + 1 < num_stages(q)) return action.stage + 1;
  if (is_backward(action.work) && action.stage > 0) return action.stage - 1;
  return std::nullopt;
}

inline double cost_of(const Costs& c, Work work) {
  switch (work) {
    case Work::kForward: return c.forward;
    case Work::kBackward: return c.backward_input + c.backward_weight;
    case Work::kBackwardInput: return c.backward_input;
    case Work::kBackwardWeight: return c.backward_weight;
  }
  return 0;
}

// Costs of a stage: its own, or the only ones.
inline const Costs& of_stage(std::span<const Costs> costs, int stage) {
  return costs.size() == 1 ? costs[0] : costs[static_cast<std::size_t>(stage)];
}

// Times at which results are available: the end of the action that makes them. Negative: not made
// yet.
class Results {
 public:
  explicit Results(const Request& q) : Results(q, std::span(&q.costs, 1)) {}
  // `costs` by stage, or one for all stages. The message of a stage goes to the next one and back.
  Results(const Request& q, std::span<const Costs> costs)
      : request_(&q), forward_(num_places(q), -1), gradient_(num_places(q), -1), costs_(costs) {}

  void done(const Action& action, double end) {
    if (action.work == Work::kForward) forward_[place_of(*request_, action)] = end;
    if (is_backward(action.work)) gradient_[place_of(*request_, action)] = end;
  }

  // Time from which the inputs of the action are available on its rank. nullopt if one of them is
  // not made yet.
  std::optional<double> ready(const Action& action) const {
    double at = 0;
    if (action.work != Work::kForward) {
      const auto& own = action.work == Work::kBackwardWeight ? gradient_ : forward_;
      at = own[place_of(*request_, action)];
      if (at < 0) return std::nullopt;
    }
    const auto stage = needs_stage(*request_, action);
    if (!stage) return at;
    const auto& from = action.work == Work::kForward ? forward_ : gradient_;
    const double made = from[place_of(*request_, {action.work, action.micro_batch, *stage})];
    if (made < 0) return std::nullopt;
    const bool sent = rank_of(*request_, *stage) != rank_of(*request_, action.stage);
    return std::max(at,
                    made + (sent ? of_stage(costs_, std::min(*stage, action.stage)).message : 0));
  }

 private:
  const Request* request_;
  std::vector<double> forward_, gradient_;
  std::span<const Costs> costs_;
};

}  // namespace weft::schedule::pipeline::internal
