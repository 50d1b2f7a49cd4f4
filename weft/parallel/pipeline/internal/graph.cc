// How a backward is cut in two. In the graph of a stage, a chain of nodes leads from its outputs
// back to its inputs. Nodes with a weight have one more edge, which leads to a parameter only:
//
//   outputs ─► [ node a ] ─► [ node b ] ─► [ node c ] ─► inputs
//                   │                           │
//                weight                      weight
//
// backward_input() asks autograd for the gradients of the inputs, and also captures what enters a
// and c. A node computes only the gradients that are asked for, so no weight is multiplied here.
// Then take_apart() removes the edges of the chain, and frees what b has saved. backward_weight()
// starts at a and c with the captured gradients. Only the edges to the weights are left, so each of
// these nodes computes the gradient of its weight alone.
//
// Outputs that do not lead to the inputs wait as a whole for the second part. If no input needs a
// gradient, as in a first stage, the first part computes nothing.
//
// Memory: between the parts, a and c keep the tensors that they have saved, and later_ the
// gradients that enter them. The graph has leaves in place of its inputs, so it never reaches
// another stage.
#include "weft/parallel/pipeline/internal/graph.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <unordered_map>
#include <unordered_set>

#include "weft/base/error.h"

namespace weft::parallel::internal {
namespace {

namespace autograd = torch::autograd;
using autograd::Edge;
using autograd::edge_list;
using autograd::Node;

// Finds the nodes that lead to the inputs.
class Paths {
 public:
  Paths(const edge_list& ends, const edge_list& inputs) {
    for (const Edge& input : inputs) leads_[input.function.get()] = true;
    for (const Edge& end : ends) visit(end.function.get());
  }
  bool leads(const Node* node) const {
    const auto found = leads_.find(node);
    return found != leads_.end() && found->second;
  }
  // The nodes that lead to the inputs.
  const std::vector<Node*>& nodes() const { return nodes_; }  // children first

 private:
  // Depth-first search without recursion, since graphs are as deep as models.
  void visit(Node* root) {
    std::vector<std::pair<Node*, bool>> open{{root, false}};
    while (!open.empty()) {
      const auto [node, below_done] = open.back();
      open.pop_back();
      if (node == nullptr) continue;
      // The second visit, after all nodes below.
      if (below_done) {
        for (const Edge& edge : node->next_edges())
          leads_[node] = leads_[node] || leads(edge.function.get());
        if (leads_[node]) nodes_.push_back(node);
      } else if (leads_.emplace(node, false).second) {
        open.emplace_back(node, true);
        for (const Edge& edge : node->next_edges()) open.emplace_back(edge.function.get(), false);
      }
    }
  }

  std::unordered_map<const Node*, bool> leads_;
  std::vector<Node*> nodes_;
};

// A node that leads to the inputs and also to parameters.
bool uses_parameter(const Node& node, const Paths& paths) {
  for (const Edge& edge : node.next_edges()) {
    if (edge.function && !paths.leads(edge.function.get())) return true;
  }
  return false;
}

// Called after the backward of the inputs: disconnects the nodes of the chain, and frees the saved
// tensors of nodes that are not needed for a weight.
void take_apart(const Paths& paths) {
  for (Node* const node : paths.nodes()) {
    if (!uses_parameter(*node, paths)) node->release_variables();
  }
  for (Node* const node : paths.nodes()) {
    for (Edge& edge : node->next_edges()) {
      if (edge.function && paths.leads(edge.function.get())) edge = Edge();
    }
  }
}

edge_list edges_of(const Tensors& tensors) {
  edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    edges.push_back(tensor.defined() && tensor.requires_grad()
                        ? autograd::impl::gradient_edge(tensor)
                        : Edge());
  }
  return edges;
}

edge_list without_empty(const edge_list& edges) {
  edge_list some;
  for (const Edge& edge : edges) {
    if (edge.function) some.push_back(edge);
  }
  return some;
}

// A tensor in the memory of a leaf that is no leaf, since autograd lets no function write to a leaf
// or to a view of one.
struct Writable final : autograd::Function<Writable> {
  static at::Tensor forward(autograd::AutogradContext* /*context*/, const at::Tensor& leaf) {
    return leaf.detach();
  }
  static autograd::variable_list backward(autograd::AutogradContext* /*context*/,
                                          const autograd::variable_list& gradients) {
    return gradients;
  }
};

}  // namespace

StageGraph::StageGraph(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs) {
  Tensors given;
  for (const at::Tensor& input : inputs) {
    inputs_.push_back(input.detach().requires_grad_(input.requires_grad()));
    given.push_back(input.requires_grad() ? Writable::apply(inputs_.back()) : inputs_.back());
  }
  outputs_ = fn(given);
  for (const at::Tensor& output : outputs_)
    WEFT_REQUIRE(output.defined(), "a block of the pipeline returned an undefined tensor");
  ends_ = edges_of(outputs_);
}

void StageGraph::drop_values() { outputs_.clear(); }

StageGraph::Roots StageGraph::roots_of(const Tensors& gradients) const {
  WEFT_CHECK(gradients.size() == ends_.size(), "gradients for " + std::to_string(gradients.size()) +
                                                   " tensors of " + std::to_string(ends_.size()));
  Roots roots;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (!ends_[i].function || !gradients[i].defined()) continue;
    roots.add(ends_[i], gradients[i]);
  }
  return roots;
}

Tensors StageGraph::with_zeros(Tensors gradients) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].requires_grad() && !gradients[i].defined())
      gradients[i] = at::zeros_like(inputs_[i]);
  }
  return gradients;
}

Tensors StageGraph::run(const Roots& roots, bool retain_graph, bool accumulate,
                        const edge_list& captured) const {
  if (roots.edges.empty()) return Tensors(captured.size());
  return autograd::Engine::get_default_engine().execute(
      roots.edges, roots.gradients, retain_graph, /*create_graph=*/false, accumulate, captured);
}

Tensors StageGraph::backward(const Tensors& gradients) {
  run(roots_of(gradients), /*retain_graph=*/false, /*accumulate=*/true, {});
  Tensors result;
  for (const at::Tensor& input : inputs_) result.push_back(input.grad());
  result = with_zeros(result);
  *this = StageGraph([](const Tensors&) { return Tensors(); }, {});
  return result;
}

Tensors StageGraph::backward_input(const Tensors& gradients) {
  const Roots roots = roots_of(gradients);
  const edge_list inputs = edges_of(inputs_), ends = without_empty(inputs);
  const Paths paths(roots.edges, ends);
  Roots now;  // roots that do not depend on the inputs wait as a whole
  for (std::size_t i = 0; i < roots.edges.size(); ++i) {
    (paths.leads(roots.edges[i].function.get()) ? now : later_)
        .add(roots.edges[i], roots.gradients[i]);
  }
  edge_list captured = ends;
  for (Node* const node : paths.nodes()) {
    if (!uses_parameter(*node, paths)) continue;
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i)
      // An edge into a node captures the gradient that enters it.
      captured.emplace_back(c10::intrusive_ptr<Node>::unsafe_reclaim_from_nonowning(node), i);
  }
  // The graph stays, since the second part needs it, and no grad() changes yet.
  const Tensors got = run(now, /*retain_graph=*/true, /*accumulate=*/false, captured);
  for (std::size_t i = ends.size(); i < captured.size(); ++i) {
    if (got[i].defined()) later_.add(captured[i], got[i]);
  }
  take_apart(paths);
  Tensors result;
  std::size_t next = 0;
  for (const Edge& input : inputs) result.push_back(input.function ? got[next++] : at::Tensor());
  return with_zeros(result);
}

void StageGraph::backward_weight() {
  run(later_, /*retain_graph=*/false, /*accumulate=*/true, {});
  *this = StageGraph([](const Tensors&) { return Tensors(); }, {});
}

}  // namespace weft::parallel::internal
