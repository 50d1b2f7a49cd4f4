#include "weft/engine/internal/samples.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace weft::engine::internal {
namespace {

// Passes that are remembered although no output of theirs is alive, since they count by their
// nodes. Nothing tells when their graphs end.
constexpr std::ptrdiff_t kMostByNodes = 64;

}  // namespace

void SampleCount::begin(double samples) {
  forget_dead();
  open_.push_back({.number = passes_++, .samples = samples, .first = at::sequence_number::peek()});
  open_.back().last = open_.back().first;
}

void SampleCount::add_outputs(const std::vector<at::Tensor>& outputs) {
  if (open_.empty()) return;
  Pass& pass = open_.back();
  pass.last = at::sequence_number::peek();
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    const auto token = std::make_shared<int>(0);
    pass.outputs.emplace_back(token, output.grad_fn().get());
    output.register_hook([weak = weak_from_this(), token, number = pass.number](const at::Tensor&) {
      if (const auto self = weak.lock()) self->reached(number);
    });
  }
}

void SampleCount::end_unknown() {
  if (open_.empty()) return;
  open_.back().last = at::sequence_number::peek();
  open_.back().unknown = open_.back().last > open_.back().first;
}

void SampleCount::set(double samples) {
  counted_ = samples;
  is_set_ = true;
}

void SampleCount::count(Pass& pass) {
  if (std::exchange(pass.counted, true) || is_set_) return;
  counted_ += pass.samples;
}

// An output of this pass goes backward, before any parameter that it leads to. The same backward()
// may reach other passes by other parameters, so all passes in its graph count now.
void SampleCount::reached(std::int64_t number) {
  before_gradient();
  if (on_output_) on_output_();
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (Pass& pass : open_) {
    const auto is_in_graph = [&](const auto& output) {
      return nodes != nullptr && !output.first.expired() &&
             nodes->contains(const_cast<Node*>(output.second));
    };
    if (pass.number != number &&
        std::none_of(pass.outputs.begin(), pass.outputs.end(), is_in_graph))
      continue;
    count(pass);
    pass.with_graph = at::GradMode::is_enabled();  // backward() and grad() set it
  }
}

// Not in a nested backward(), when the samples of the outer one have counted already. If an
// exception ends the backward(), autograd destroys the callback without a call.
void SampleCount::before_gradient() {
  if (begun_ >= 0) return;
  begun_ = torch::autograd::get_current_graph_task_id();
  const auto end = [weak = weak_from_this(), task = begun_](void*) {
    const auto self = weak.lock();
    if (self && self->begun_ == task) self->begun_ = -1;
  };
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::shared_ptr<void>(static_cast<void*>(this), end)]() mutable { token.reset(); });
  if (counted_ > 0 && are_dropped_ && are_dropped_()) drop();
}

void SampleCount::in_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (std::exchange(task_, task) == task) return;
  const auto is_open = [](const Pass& pass) {
    return pass.with_graph || (pass.unknown && !pass.counted);
  };
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr || std::none_of(open_.begin(), open_.end(), is_open)) return;
  for (const Node* const node : *nodes) {
    const std::uint64_t number = node->sequence_nr();
    for (Pass& pass : open_) {
      if (!is_open(pass) || number < pass.first || number >= pass.last) continue;
      count(pass);
      pass.with_graph = false;
    }
  }
}

// Within a nested backward() (recomputation) the graph of the pass cannot be seen. If its outputs
// are unknown too, passes count as they were made.
double SampleCount::value() {
  for (Pass& pass : open_) {
    if (counted_ == 0 && task_ >= 0 && pass.unknown) count(pass);
  }
  return counted_;
}

void SampleCount::drop() {
  if (is_set_) return;
  reset();
}

void SampleCount::reset() {
  counted_ = 0;
  is_set_ = false;
  task_ = -1;
  for (Pass& pass : open_) pass.counted = false;
  forget_dead();
}

void SampleCount::forget_dead() {
  std::erase_if(open_, [](const Pass& pass) {
    return !pass.counts_by_nodes() &&
           std::all_of(pass.outputs.begin(), pass.outputs.end(),
                       [](const auto& output) { return output.first.expired(); });
  });
  const auto by_nodes = [](const Pass& pass) { return pass.counts_by_nodes(); };
  if (std::count_if(open_.begin(), open_.end(), by_nodes) <= kMostByNodes) return;
  open_.erase(std::find_if(open_.begin(), open_.end(), by_nodes));
}

}  // namespace weft::engine::internal
