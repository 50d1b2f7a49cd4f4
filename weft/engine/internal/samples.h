// Counts the samples of this rank that go backward. Gradients are weighted by them.
//
// A forward pass tells its samples and its outputs. They count when backward() reaches an output,
// so a forward pass for validation or for a log line counts nothing. Its graph is recognized by the
// nodes of its outputs. Outputs of types that weft cannot look into are recognized by the numbers
// that autograd gave to the nodes made during the pass. So are passes whose gradients have a graph
// (create_graph): if a penalty of these gradients goes backward, it reaches nodes of the pass, and
// maybe no output.
//
// A program may drop gradients of earlier passes in ways that the engine does not see, such as
// zero_grad() of the module or of an optimizer of torch. Each backward() therefore asks whether
// they are still there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace weft::engine::internal {

class SampleCount : public std::enable_shared_from_this<SampleCount> {
 public:
  // `are_dropped` tells whether gradients that earlier passes have made are gone.
  void ask(std::function<bool()> are_dropped) { are_dropped_ = std::move(are_dropped); }
  // `reached` is called when backward() or grad() reaches an output.
  void on_output(std::function<void()> reached) { on_output_ = std::move(reached); }
  // Begins a forward pass of this thread with so many samples.
  void begin(double samples);
  // Outputs of the pass, or of a part of it.
  void add_outputs(const std::vector<at::Tensor>& outputs);
  // Ends a pass whose outputs are not known.
  void end_unknown();
  // Sets the samples of this step, whatever goes backward.
  void set(double samples);

  // Called before backward() makes a gradient. Costs a comparison after the first call.
  void before_gradient();
  // Called when backward() has made a gradient. Costs a comparison after the first call in each
  // backward().
  void in_backward();
  // Samples that have gone backward since reset().
  double value();
  // True if gradients were made since reset(), of passes that nobody has told of.
  bool are_unknown() { return task_ >= 0 && !is_set_ && value() == 0; }
  // The gradients since reset() were dropped: the samples that went backward do not count.
  void drop();
  // Ends the step. A pass that goes backward again, by a retained graph, counts again.
  void reset();

 private:
  using Node = torch::autograd::Node;
  struct Pass {
    std::int64_t number = 0;
    double samples = 0;
    bool counted = false;
    // Nodes of the outputs. Each is alive as long as its token.
    std::vector<std::pair<std::weak_ptr<int>, const Node*>> outputs = {};
    // Autograd's numbers of the nodes made in the pass: from `first` to before `last`.
    std::uint64_t first = 0, last = 0;
    bool unknown = false;     // it has outputs that are not known
    bool with_graph = false;  // the last gradients of an output have a graph

    bool counts_by_nodes() const { return unknown || with_graph; }
  };
  void reached(std::int64_t number);
  void count(Pass& pass);
  void forget_dead();

  double counted_ = 0;
  bool is_set_ = false;
  std::int64_t passes_ = 0;
  std::vector<Pass> open_;
  int task_ = -1;   // the backward() that in_backward() has seen
  int begun_ = -1;  // the outermost backward() that has called before_gradient(); -1: it has ended
  std::function<bool()> are_dropped_;
  std::function<void()> on_output_;
};

}  // namespace weft::engine::internal
