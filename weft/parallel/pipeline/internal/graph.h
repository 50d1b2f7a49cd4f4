// What one micro-batch leaves in one stage between its forward and its backward, and the backward
// in one part or in two.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <vector>

namespace weft::parallel::internal {

using Tensors = std::vector<at::Tensor>;

// Runs `fn` on leaves that stand for `inputs`, so that the graph is this stage's alone. All calls
// of one thread.
class StageGraph {
 public:
  StageGraph(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs);

  // Those that need a gradient may be given one by the two calls below.
  const Tensors& outputs() const { return outputs_; }
  // From now on only the graph is held. The next stage, or a message, has the numbers.
  void drop_values();

  // Both parts: gradients of parameters are added to their grad() as autograd does; gives those of
  // the inputs, undefined where none is needed. The graph is gone afterwards.
  Tensors backward(const Tensors& gradients);

  // The same in two calls. The first computes what leads to the inputs, and notes the gradients at
  // those nodes that use a parameter; the second lets these nodes do the rest, so that a weight's
  // multiplication happens there and nothing is computed twice. (libtorch's nodes compute what is
  // asked for; the chain between the layers is not walked again.) In between the graph holds what
  // the weights need.
  Tensors backward_input(const Tensors& gradients);
  void backward_weight();

 private:
  struct Roots {
    std::vector<torch::autograd::Edge> edges;
    Tensors gradients;
    void add(const torch::autograd::Edge& edge, const at::Tensor& gradient) {
      edges.push_back(edge);
      gradients.push_back(gradient);
    }
  };
  Roots roots_of(const Tensors& gradients) const;
  Tensors with_zeros(Tensors gradients) const;  // where an input has no influence
  Tensors run(const Roots& roots, bool keep, bool accumulate,
              const std::vector<torch::autograd::Edge>& captured) const;

  Tensors inputs_, outputs_;
  // Where the outputs' gradients go in; without a function: needs none.
  std::vector<torch::autograd::Edge> ends_;
  Roots later_;  // of backward_weight()
};

}  // namespace weft::parallel::internal
