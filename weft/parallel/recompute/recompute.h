// Activation checkpointing: recompute() wraps a part of a model, keeps only its inputs, and
// computes the part again in backward.
//
//   // full: a whole block
//   x = recompute([&](const at::Tensor& x) { return block->forward(x); }, x);
//   // selective: large, cheap activations
//   h = recompute([&](const at::Tensor& q, …) { return attention(q, k, v); }, q, k, v);
//
// Sources: Chen, Xu, Zhang, Guestrin: Training deep nets with sublinear memory cost, 2016.
// Selective: Korthikanti and others: Reducing activation recomputation in large transformer models,
// 2022, section 5.
//
// Cost: one more forward of the part. With n equal blocks, each wrapped, a step keeps n block
// inputs and the activations of one block, instead of the activations of n blocks. recompute() may
// be nested.
//
// The result is that of the plain function, bit for bit, gradients included:
//   - Parameters that the function uses are found automatically. They get their gradients in the
//     ordinary way, through the outer graph. So hooks on them run once for each backward
//     (DataParallel's too), and shared parameters and torch::autograd::grad() work.
//   - The default generators of the CPU and of the inputs' CUDA devices are set back for the second
//     run and then forward again, so dropout is the same. RecomputeOptions names other state.
//   - A batch norm in training mode takes each batch into its running statistics twice, since its
//     buffers are not set back. Name them in RecomputeOptions::preserve to set them back.
//   - The function runs as it is while gradients are not recorded, and where nothing needs one.
// A backward in two parts (zero-bubble pipelines: gradients of the inputs first, of the weights
// later) computes the part again once. The results are kept until the rest is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace weft::parallel {

using Tensors = std::vector<at::Tensor>;

// Saves some state when it is called, and returns a function that restores it.
using PreserveState = std::function<std::function<void()>()>;

// Saves the dropout state of split layers; `context` is their TensorParallel.
template <class Context>
PreserveState preserve_draws(const Context& context) {
  return [context] { return [context, draw = context.draw()] { context.set_draw(draw); }; };
}

// Saves the state of a device's default generator, from which libtorch's dropout draws.
PreserveState preserve_generator(const at::Device& device);

// Saves the values of buffers, such as the running statistics of batch norms. Those that cannot be
// written in place, expanded and sparse ones, are constant.
PreserveState preserve_buffers(const Tensors& buffers);

struct RecomputeOptions {
  // Restore the default generators of the CPU and of the inputs' CUDA devices. They belong to the
  // whole process: where ranks are threads of one process, restoring them undoes draws that other
  // threads made between a forward and its backward. Use TensorParallel's dropout there, and set
  // this to false.
  bool random = true;
  // Any other state that the function reads and changes, such as a batch norm's running statistics.
  std::vector<PreserveState> preserve;
};

// Returns fn(inputs), one or more results. `fn` is kept until backward is over and then runs again.
// It must return the same for the same inputs and state. It may hold modules and parameters.
// Results of other computations that need a gradient must be inputs. Inputs may be undefined, of
// any type, and need a gradient or not. Results must be defined. The second run uses the autocast
// state of the first, on the CPU and on CUDA devices. Each run clears autocast's cache before and
// after it, so calls cast a shared parameter separately. Any thread may make its own calls.
//
// Throws Error(kInvalidArgument) for a captured tensor that is the result of another computation,
// and if fn changes an input in place. Throws it in backward if the second run gives other shapes
// than the first, and for gradients of gradients. Exceptions of fn pass through.
Tensors recompute_all(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs,
                      const RecomputeOptions& options = {});

// As above, for a function of tensors that returns one tensor: recompute(fn, x, y).
template <class Fn, class... Inputs>
at::Tensor recompute_with(const RecomputeOptions& options, Fn fn, const Inputs&... inputs) {
  const auto call =
      [fn = std::move(fn)]<std::size_t... I>(const Tensors& xs, std::index_sequence<I...>) {
    return fn(xs[I]...);
  };
  return recompute_all(
      [call](const Tensors& xs) { return Tensors{call(xs, std::index_sequence_for<Inputs...>{})}; },
      {inputs...}, options)[0];
}
template <class Fn, class... Inputs>
at::Tensor recompute(Fn fn, const Inputs&... inputs) {
  return recompute_with(RecomputeOptions{}, std::move(fn), inputs...);
}

}  // namespace weft::parallel
