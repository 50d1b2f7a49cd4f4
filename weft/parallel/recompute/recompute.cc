// The first run records its graph too. The graph shows which parameters the function uses, and is
// freed at once. It holds no more memory than the second run holds in backward, so the peak is the
// same as without recording. One node represents the function in the outer graph. The parameters
// become inputs of this node, so autograd puts their gradients in the usual place.
#include "weft/parallel/recompute/recompute.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/parallel/recompute/internal/autocast_state.h"

namespace weft::parallel {
namespace {

namespace autograd = torch::autograd;

// The CPU, and the inputs' CUDA devices, each once.
std::vector<at::Device> devices_that_draw(const Tensors& inputs) {
  std::vector<at::Device> devices{at::kCPU};
  for (const at::Tensor& input : inputs) {
    const at::Device device = input.device();
    if (device.is_cuda() && std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  }
  return devices;
}

// Saves the state at construction.
class Preserved {
 public:
  explicit Preserved(const std::vector<PreserveState>& preserve) {
    for (const PreserveState& one : preserve) back_.push_back(one());
  }
  void set_back() const {
    for (const auto& one : back_) one();
  }

 private:
  std::vector<std::function<void()>> back_;
};

// Autocast keeps its casts of leaves. Those from before a run belong to another computation, and
// those of the run would keep copies of its inputs.
struct OwnCasts {
  OwnCasts() { at::autocast::clear_cache(); }
  ~OwnCasts() { at::autocast::clear_cache(); }
  OwnCasts(const OwnCasts&) = delete;
  OwnCasts& operator=(const OwnCasts&) = delete;
};

// A run with its graph. `inputs` are leaves of the graph.
struct Run {
  Tensors inputs, outputs;
};

// Detached tensors share the version.
std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors)
    versions.push_back(tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version()));
  return versions;
}

Run run(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs) {
  const at::AutoGradMode record(true);
  const OwnCasts casts;
  Run result;
  const std::vector<std::int64_t> before = versions_of(inputs);
  for (const at::Tensor& input : inputs)
    result.inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
  result.outputs = fn(result.inputs);
  WEFT_REQUIRE(versions_of(inputs) == before,
               "recompute: the function changes its input in place, so a second run would not see "
               "the same input; compute a new tensor (x.div(255), not x.div_(255))");
  for (const at::Tensor& output : result.outputs)
    WEFT_REQUIRE(output.defined(), "recompute: the function returned an undefined tensor");
  return result;
}

// The leaves, other than the inputs, on which the outputs depend. Nodes older than the run belong
// to another computation.
Tensors parameters_of(const Run& run, std::uint64_t begin) {
  std::unordered_set<const void*> seen;
  for (const at::Tensor& input : run.inputs) seen.insert(input.unsafeGetTensorImpl());
  std::vector<autograd::Node*> open;
  for (const at::Tensor& output : run.outputs) {
    if (output.requires_grad())
      open.push_back(autograd::impl::gradient_edge(output).function.get());
  }
  Tensors parameters;
  while (!open.empty()) {
    autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* const leaf = dynamic_cast<autograd::AccumulateGrad*>(node)) {
      if (seen.insert(leaf->variable.unsafeGetTensorImpl()).second)
        parameters.push_back(leaf->variable);
      continue;
    }
    WEFT_REQUIRE(
        node->sequence_nr() >= begin,
        "recompute: the function holds a tensor that is the result of another computation (" +
            node->name() + ") and needs a gradient; pass it as an input");
    for (const autograd::Edge& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return parameters;
}

// Hooks on parameters run when the gradient arrives in the outer graph, not when it is computed.
class WithoutHooks {
 public:
  explicit WithoutHooks(Tensors tensors) : tensors_(std::move(tensors)), hooks_(tensors_.size()) {
    swap();
  }
  ~WithoutHooks() { swap(); }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  void swap() {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      autograd::impl::hooks(tensors_[i]).swap(hooks_[i]);
  }
  Tensors tensors_;
  std::vector<std::vector<std::unique_ptr<autograd::FunctionPreHook>>> hooks_;
};

// Data that a call needs to run again.
struct Call : torch::CustomClassHolder {
  std::function<Tensors(const Tensors&)> fn;
  std::vector<PreserveState> preserve;
  std::optional<Preserved> before;
  internal::AutocastState autocast;
  std::size_t num_inputs = 0;
  Tensors outputs;                // results of the first run, until the node has taken them
  std::vector<at::Tensor> apart;  // the outputs that need no gradient
  // The second run, while one of its gradients may still be requested.
  std::optional<Run> again;
  std::vector<bool> asked;  // requested gradients, by input and parameter
};

Run run_again(const Call& call, const Tensors& inputs) {
  const Preserved now(call.preserve);
  const internal::AutocastState::Use use(call.autocast);
  call.before->set_back();
  try {
    Run result = run(call.fn, inputs);
    now.set_back();
    return result;
  } catch (...) {
    now.set_back();
    throw;
  }
}

struct Recomputed : autograd::Function<Recomputed> {
  static autograd::variable_list forward(autograd::AutogradContext* ctx,
                                         const c10::intrusive_ptr<Call>& call,
                                         at::TensorList inputs_and_parameters) {
    ctx->save_for_backward(inputs_and_parameters.vec());
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable(call->apart);
    call->apart.clear();
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return std::exchange(call->outputs, {});
  }

  static autograd::variable_list backward(autograd::AutogradContext* ctx,
                                          const autograd::variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "recompute: gradients of gradients are not supported; call the function directly");
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    const Tensors saved = ctx->get_saved_variables();
    const auto middle = saved.begin() + static_cast<std::ptrdiff_t>(call->num_inputs);
    if (!call->again) call->again = run_again(*call, {saved.begin(), middle});
    const Tensors parameters(middle, saved.end());
    Tensors leaves = call->again->inputs, wanted;
    leaves.insert(leaves.end(), parameters.begin(), parameters.end());
    const std::vector<std::size_t> places = asked_now(*ctx, *call, leaves);
    for (const std::size_t place : places) wanted.push_back(leaves[place]);
    const bool last = std::find(call->asked.begin(), call->asked.end(), false) == call->asked.end();
    const WithoutHooks quiet(parameters);
    const Tensors got = differentiate(*call, gradients, wanted, !last);
    autograd::variable_list result(1 + leaves.size());  // the first entry belongs to the call
    for (std::size_t i = 0; i < got.size(); ++i) result[1 + places[i]] = got[i];
    if (last) {
      call->again.reset();
      call->asked.clear();
    }
    return result;
  }

 private:
  // Returns the gradients that this backward requests. Marks them, and those that are not needed,
  // as requested.
  static std::vector<std::size_t> asked_now(const autograd::AutogradContext& ctx, Call& call,
                                            const Tensors& leaves) {
    call.asked.resize(leaves.size());
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const bool needs = leaves[i].requires_grad();
      if (needs && ctx.needs_input_grad(i)) places.push_back(i);
      call.asked[i] = call.asked[i] || !needs || ctx.needs_input_grad(i);
    }
    return places;
  }

  static Tensors differentiate(const Call& call, const Tensors& gradients, const Tensors& wanted,
                               bool retain) {
    const Tensors& all = call.again->outputs;
    WEFT_REQUIRE(all.size() == gradients.size(),
                 "recompute: the second run returned " + std::to_string(all.size()) +
                     " tensors, the first " + std::to_string(gradients.size()));
    Tensors outputs, at_outputs;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!gradients[i].defined() || !all[i].requires_grad()) continue;
      WEFT_REQUIRE(all[i].sizes() == gradients[i].sizes(),
                   "recompute: the second run returned other shapes than the first");
      outputs.push_back(all[i]);
      at_outputs.push_back(gradients[i]);
    }
    if (outputs.empty() || wanted.empty()) return {};
    return autograd::grad(outputs, wanted, at_outputs, retain, /*create_graph=*/false,
                          /*allow_unused=*/true);
  }
};

// Wraps the function so that it takes only the defined inputs.
Tensors without_undefined(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs,
                          const RecomputeOptions& options) {
  Tensors defined;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    defined.push_back(inputs[i]);
    places.push_back(i);
  }
  const auto spread = [fn, places, size = inputs.size()](const Tensors& some) {
    Tensors all(size);
    for (std::size_t i = 0; i < some.size(); ++i) all[places[i]] = some[i];
    return fn(all);
  };
  return recompute_all(spread, defined, options);
}

}  // namespace

PreserveState preserve_buffers(const Tensors& buffers) {
  Tensors written;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.layout() == at::kStrided && at::has_internal_overlap(buffer) != at::MemOverlap::Yes)
      written.push_back(buffer);
  }
  return [written]() -> std::function<void()> {
    Tensors values;
    for (const at::Tensor& buffer : written) values.push_back(buffer.clone());
    return [written, values] {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < written.size(); ++i) written[i].variable_data().copy_(values[i]);
    };
  };
}

PreserveState preserve_generator(const at::Device& device) {
  return [device]() -> std::function<void()> {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const auto state_of = [](at::Generator& g) {
      const std::lock_guard lock(g.mutex());
      return g.get_state();
    };
    return [generator, state = state_of(generator)]() mutable {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    };
  };
}

Tensors recompute_all(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs,
                      const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  if (!std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.defined(); })) {
    return without_undefined(fn, inputs, options);
  }
  const auto call = c10::make_intrusive<Call>();
  call->fn = fn;
  call->preserve = options.preserve;
  if (options.random) {
    for (const at::Device& device : devices_that_draw(inputs))
      call->preserve.push_back(preserve_generator(device));
  }
  call->before.emplace(call->preserve);
  call->num_inputs = inputs.size();
  autograd::variable_list all = inputs;
  {
    const std::uint64_t begin = at::sequence_number::peek();
    const Run first = run(fn, inputs);
    if (std::none_of(first.outputs.begin(), first.outputs.end(),
                     [](const at::Tensor& t) { return t.requires_grad(); })) {
      return first.outputs;
    }
    const Tensors parameters = parameters_of(first, begin);
    all.insert(all.end(), parameters.begin(), parameters.end());
    for (const at::Tensor& output : first.outputs) {
      // Only the values of the run are kept. They share the version of the run's tensors, so that
      // autograd sees a change in place of an input that was passed through.
      call->outputs.push_back(output.detach());
      if (!output.requires_grad()) call->apart.push_back(call->outputs.back());
    }
  }
  return Recomputed::apply(call, at::TensorList(all));  // apply() only inspects this kind of list
}

}  // namespace weft::parallel
