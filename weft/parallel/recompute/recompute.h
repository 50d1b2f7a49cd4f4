// Activation checkpointing: a part of a model that keeps only its inputs, and is computed again when backward comes to it.
//
//   x = recompute([&](const at::Tensor& x) { return block->forward(x); }, x);       full: a whole block
//   h = recompute([&](const at::Tensor& q, …) { return attention(q, k, v); }, q, k, v);    selective: what is large and cheap
//
// Chen, Xu, Zhang, Guestrin: Training deep nets with sublinear memory cost, 2016; selective: Korthikanti and others: Reducing activation
// recomputation in large transformer models, 2022, section 5. Costs one more forward of the part. With n equal blocks, each wrapped, a step
// keeps n block inputs and one block's activations in place of n blocks' activations; recompute() may be nested.
//
// The result is that of the plain function, bit for bit, gradients included:
//   - what the function uses besides its inputs is found by itself: parameters get their gradients in the ordinary way, through the outer
//     graph, so that hooks on them run once for each backward (DataParallel's too), shared parameters and torch::autograd::grad() work;
//   - the default CPU generator is set back for the second run and then forward again, so that dropout is the same; other state as
//     RecomputeOptions say;
//   - while gradients are not recorded, and where nothing needs one, the function simply runs.
// A backward that asks for some of the gradients only (those of the inputs first, of the weights later, as zero-bubble pipelines do)
// computes the part again once: what it made is kept until the rest is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace weft::parallel {

using Tensors = std::vector<at::Tensor>;

// Notes some state when it is called, and gives what sets it back to that.
using KeepState = std::function<std::function<void()>()>;

// That of the dropout of split layers: `context` is their TensorParallel.
template <class Context>
KeepState keep_draws(const Context& context) {
  return [context] { return [context, draw = context.draw()] { context.set_draw(draw); }; };
}

struct RecomputeOptions {
  // The default CPU generator. It is the whole process's: where several ranks are threads of it, draws of one thread between a forward and
  // its backward are undone for the others, so use TensorParallel's dropout there, and set this to false.
  bool random = true;
  std::vector<KeepState> keep;  // whatever else the function reads and changes
};

// fn(inputs), with one or more results. `fn` is kept until backward is over, and run then again: it must give the same for the same
// inputs and state. It may hold modules and parameters; results of other computations that need a gradient are passed as inputs. Inputs
// may be undefined, of any type, and need a gradient or not. Results must be defined. Autocast (of the CPU) is as in the
// first run. Each thread its own calls.
//
// Throws Error(kInvalidArgument) for a captured tensor that is the result of another computation; in backward, where the second run gives
// other shapes than the first, and for gradients of gradients. What fn throws goes through.
Tensors recompute_all(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs, const RecomputeOptions& options = {});

// The same for a function of tensors that gives a tensor: recompute(fn, x, y).
template <class Fn, class... Inputs>
at::Tensor recompute_with(const RecomputeOptions& options, Fn fn, const Inputs&... inputs) {
  const auto call = [fn = std::move(fn)]<std::size_t... I>(const Tensors& xs, std::index_sequence<I...>) { return fn(xs[I]...); };
  return recompute_all([call](const Tensors& xs) { return Tensors{call(xs, std::index_sequence_for<Inputs...>{})}; }, {inputs...},
                       options)[0];
}
template <class Fn, class... Inputs>
at::Tensor recompute(Fn fn, const Inputs&... inputs) {
  return recompute_with(RecomputeOptions{}, std::move(fn), inputs...);
}

}  // namespace weft::parallel
