// Runs one rank's list of steps in order. The lists of all ranks follow one global order of actions
// and messages (messages.h), so no rank waits forever. This class keeps the data on its way between
// them, by stage and micro-batch:
//
//   graphs_                   from a forward to the last part of its backward
//   activations_, gradients_  made by another stage of this rank, until an action uses them
//   coming_…                  expected from another rank, until an action uses them
//   results_                  made here for another rank, until their send step
//   given_                    shapes of sent activations, until their gradients are expected
//
// A send step starts to send, and a receive step starts to receive. Only the action that needs a
// message waits for it (take). So transfers run beside the computation, although the lists would be
// correct even without buffers. wire_.progress() between the steps moves messages on.
//
// Memory: after its forward, a stage keeps only its graph. The values of its outputs belong to the
// next stage or to the message. The loss is a part of the last stage's graph, and its gradient is
// one. So the backward of the last stage is like any other.
//
// Threads: one thread calls it. A runner lives for one step, so nothing is left of a step that
// failed.
#include "weft/parallel/pipeline/internal/runner.h"

#include <ATen/ATen.h>

#include "weft/base/error.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::internal {
namespace {

using lists::Work;

// Sizes and types, without memory, of the tensors that need a gradient.
Tensors shapes_of(const Tensors& tensors) {
  Tensors shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(
        tensor.requires_grad()
            ? at::empty({1}, tensor.options().requires_grad(false)).expand(tensor.sizes())
            : at::Tensor());
  }
  return shapes;
}

Tensors detached(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors)
    result.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  return result;
}

bool is_backward(Work work) { return work == Work::kBackward || work == Work::kBackwardInput; }

}  // namespace

Runner::Runner(lists::Request request, const std::map<int, Fn>& stages,
               const PipelineOptions& options, Wire& wire)
    : request_(std::move(request)),
      stages_(stages),
      options_(options),
      wire_(wire),
      num_stages_(lists::num_stages(request_)) {}

Outcome Runner::run(const std::vector<lists::Step>& steps, const Batch& batch) {
  batch_ = &batch;
  losses_.assign(static_cast<std::size_t>(request_.micro_batches), 0);
  outcome_.outputs.resize(losses_.size());
  for (const lists::Step& step : steps) {
    switch (step.kind) {
      case lists::Kind::kCompute: compute(step.action); break;
      case lists::Kind::kSend: send(step); break;
      case lists::Kind::kReceive: receive(step); break;
    }
    wire_.progress();
  }
  wire_.finish();
  for (const double loss : losses_) outcome_.loss += loss;
  return std::move(outcome_);
}

void Runner::compute(const lists::Action& action) {
  const Place place{action.stage, action.micro_batch};
  const Tensors given = given_to(action.work, place);
  if (options_.before && batch_->training) options_.before(action);
  if (action.work == Work::kForward) {
    forward(place, given);
  } else {
    backward(action.work, place, given);
  }
  if (options_.after && batch_->training) options_.after(action);
}

Tensors Runner::given_to(Work work, const Place& place) {
  const auto [stage, micro_batch] = place;
  if (is_backward(work)) return take(gradients_, coming_gradients_, place);
  if (work != Work::kForward) return {};
  return stage == 0 ? batch_->inputs.at(static_cast<std::size_t>(micro_batch))
                    : take(activations_, coming_activations_, place);
}

void Runner::backward(Work work, const Place& place, const Tensors& gradients) {
  StageGraph& graph = graphs_.at(place);
  const auto [stage, micro_batch] = place;
  if (is_backward(work)) {
    Tensors result =
        work == Work::kBackward ? graph.backward(gradients) : graph.backward_input(gradients);
    if (stage > 0) {
      const bool here = lists::rank_of(request_, stage - 1) == lists::rank_of(request_, stage);
      (here ? gradients_[{stage - 1, micro_batch}] : results_[place]) = std::move(result);
    }
  } else {
    graph.backward_weight();
  }
  // Until then, the graph counts as held (count_held() in schedule/pipeline/proof.h).
  if (work != Work::kBackwardInput) graphs_.erase(place);
}

void Runner::forward(const Place& place, const Tensors& inputs) {
  const auto [stage, micro_batch] = place;
  const Fn& fn = stages_.at(stage);
  const Fn whole = [&](const Tensors& x) {
    return is_last(stage) ? last(fn(x), place.second) : fn(x);
  };
  if (!batch_->training) {
    const at::NoGradGuard no_grad;
    Tensors outputs = whole(inputs);
    if (is_last(stage)) return;
    const bool here = lists::rank_of(request_, stage + 1) == lists::rank_of(request_, stage);
    (here ? activations_[{stage + 1, micro_batch}] : results_[place]) = std::move(outputs);
    return;
  }
  StageGraph& graph = graphs_.emplace(place, StageGraph(whole, inputs)).first->second;
  if (!is_last(stage)) {
    const bool here = lists::rank_of(request_, stage + 1) == lists::rank_of(request_, stage);
    if (!here) given_[place] = shapes_of(graph.outputs());
    // Detached, so that the next stage's graph ends there, also on this rank.
    (here ? activations_[{stage + 1, micro_batch}] : results_[place]) = detached(graph.outputs());
  }
  graph.drop_values();
}

// Computes the micro-batch's part of the loss, or stores the outputs.
Tensors Runner::last(const Tensors& outputs, int micro_batch) {
  const auto at = static_cast<std::size_t>(micro_batch);
  if (batch_->targets.empty()) {
    outcome_.outputs[at] = outputs;
    return {};
  }
  const at::Tensor loss = options_.loss(outputs, batch_->targets[at]);
  WEFT_REQUIRE(loss.defined() && loss.numel() == 1,
               "pipeline: the loss of a micro-batch must be one number, the mean over its samples");
  WEFT_REQUIRE(!batch_->training || loss.requires_grad(),
               "pipeline: the loss does not depend on the model's parameters, so they get no "
               "gradient");
  const at::Tensor part = loss * batch_->shares[at];
  losses_[at] = part.item<double>();
  // As if a further stage had returned the gradient of its input.
  if (batch_->training) gradients_[{num_stages_ - 1, micro_batch}] = {at::ones_like(part)};
  return {part};
}

void Runner::send(const lists::Step& step) {
  const auto result = results_.find({step.action.stage, step.action.micro_batch});
  WEFT_CHECK(result != results_.end(), "nothing to send of " + lists::describe(step.action));
  const Tensors tensors = std::move(result->second);
  results_.erase(result);
  if (step.action.work == Work::kForward) {
    wire_.send_activations(step.peer, tensors);
  } else {
    wire_.send_gradients(step.peer, tensors);
  }
}

void Runner::receive(const lists::Step& step) {
  const auto [work, micro_batch, stage] = step.action;
  if (work == Work::kForward) {
    coming_activations_[{stage + 1, micro_batch}] = wire_.expect_activations(step.peer);
    return;
  }
  const Place mine{stage - 1, micro_batch};
  coming_gradients_[mine] = wire_.expect_gradients(step.peer, given_.at(mine));
  given_.erase(mine);
}

Tensors Runner::take(std::map<Place, Tensors>& here, std::map<Place, Wire::ArrivalPtr>& coming,
                     const Place& place) {
  if (const auto found = here.find(place); found != here.end()) {
    Tensors tensors = std::move(found->second);
    here.erase(found);
    return tensors;
  }
  Tensors tensors = wire_.take(coming.at(place));
  coming.erase(place);
  return tensors;
}

}  // namespace weft::parallel::internal
