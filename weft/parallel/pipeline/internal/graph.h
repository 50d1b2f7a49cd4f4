// The graph of one micro-batch in one stage, between its forward and its backward, and the backward
// in one part or in two.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>  // an Edge is complete only with it

#include <functional>
#include <vector>

namespace weft::parallel::internal {

using Tensors = std::vector<at::Tensor>;

// Runs `fn` with leaves in place of `inputs`, so that the graph contains this stage only. `fn` may
// change its inputs in place, and so the memory of `inputs`. One thread makes all calls.
class StageGraph {
 public:
  StageGraph(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs);

  // Outputs that need a gradient can get one by the two calls below.
  const Tensors& outputs() const { return outputs_; }
  // Releases the outputs and keeps only the graph. The next stage, or a message, holds the values.
  void drop_values();

  // Runs both parts: adds gradients of parameters to their grad(), as autograd does. Returns those
  // of the inputs, undefined if not needed. Frees the graph.
  Tensors backward(const Tensors& gradients);

  // The same in two calls. The first call computes the gradients of the inputs, and stores the
  // gradients at nodes that use a parameter. The second call runs these nodes for their weights. So
  // the multiplication for a weight runs in the second call, and nothing is computed twice.
  // (libtorch's nodes compute only the requested gradients, and the chain between the layers does
  // not run again.) Between the calls, the graph holds the tensors for the weights.
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
  Tensors with_zeros(Tensors gradients) const;  // zeros for inputs without influence
  Tensors run(const Roots& roots, bool retain_graph, bool accumulate,
              const std::vector<torch::autograd::Edge>& captured) const;

  Tensors inputs_, outputs_;
  // Edges for the gradients of the outputs. Without a function: needs no gradient.
  std::vector<torch::autograd::Edge> ends_;
  Roots later_;  // roots of backward_weight()
};

}  // namespace weft::parallel::internal
