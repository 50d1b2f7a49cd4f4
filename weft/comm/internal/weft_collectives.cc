#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "weft/comm/internal/device_call.h"
#include "weft/comm/internal/tensor_call.h"
#include "weft/comm/internal/tensor_collectives.h"
#include "weft/comm/internal/tensor_data.h"
#include "weft/comm/internal/weft_backend.h"

// The collectives of WeftBackend. Checks and profiling titles run on the caller's thread, the
// bodies on the thread of their queue.
namespace weft::comm::internal {
namespace {

using schedule::Collective;

// Checks that `whole` has room for the `part`s of all ranks.
void require_parts(const char* operation, const at::Tensor& whole, const at::Tensor& part,
                   int size) {
  require_same_type(operation, whole, part);
  const std::string times = size == 1 ? "as many as" : std::to_string(size) + " times";
  WEFT_REQUIRE(whole.numel() == part.numel() * size,
               std::string(operation) + ": one side has " + std::to_string(whole.numel()) +
                   " elements, expected " + times + " the other's " + std::to_string(part.numel()));
}

}  // namespace

WeftBackend::WorkPtr WeftBackend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors, "all_reduce");
  if (auto* const devices = device_backend(tensor))
    return device_call("all_reduce", tensors,
                       [&](Tensors& dense) { return devices->allreduce(dense, options); });
  if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
  const How how = this->how(options);
  return collective({c10d::OpType::ALLREDUCE, "weft:all_reduce", tensors, tensors}, how,
                    [this, tensor, op = options.reduceOp, how] {
                      internal::all_reduce(*engine_, tensor, op, how.timeout);
                    });
}

WeftBackend::WorkPtr WeftBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors, "all_reduce");
  const How how = this->how(options);
  WEFT_REQUIRE(options.reduceOp.op_ == c10d::ReduceOp::SUM,
               "all_reduce: sparse tensors can only be summed");
  return collective(
      {c10d::OpType::_ALLREDUCE_SPARSE, "weft:sparse_all_reduce", tensors, tensors}, how,
      [this, tensor, how] { internal::all_reduce_sparse(*engine_, tensor, how.timeout); });
}

WeftBackend::WorkPtr WeftBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (auto* const devices = device_backend(tensors))
    return device_call("all_reduce", tensors, [&](Tensors& dense) {
      return devices->allreduce_coalesced(dense, options);
    });
  const How how = this->how(options);
  WEFT_REQUIRE(!tensors.empty(), "all_reduce: expected a list of tensors that is not empty");
  return collective({c10d::OpType::ALLREDUCE_COALESCED, "weft:all_reduce", tensors, tensors}, how,
                    [this, tensors, op = options.reduceOp, how] {
                      // Each result is that of its tensor alone, also where tensors share memory.
                      const bool apart = !any_overlap(tensors);
                      Tensors own;
                      for (const auto& tensor : tensors) internal::require_dense(tensor);
                      for (const auto& tensor : tensors)
                        own.push_back(apart ? tensor : tensor.clone());
                      for (std::size_t left = own.size(); left-- > 0;)
                        internal::all_reduce(*engine_, own[own.size() - 1 - left], op, how.timeout,
                                             left);
                      for (std::size_t i = 0; !apart && i < own.size(); ++i)
                        tensors[i].copy_(own[i]);
                    });
}

WeftBackend::WorkPtr WeftBackend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only(tensors, "broadcast");
  if (auto* const devices = device_backend(tensor))
    return device_call("broadcast", tensors,
                       [&](Tensors& dense) { return devices->broadcast(dense, options); });
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  require_root("broadcast", options.rootRank, size_);
  return collective({c10d::OpType::BROADCAST, "weft:broadcast", tensors, tensors, root != rank_},
                    how, [this, tensor, root, how] {
                      const bool sends = root == rank_;
                      run_call(*engine_, {.collective = Collective::kBroadcast,
                                          .input = sends ? tensor : at::Tensor(),
                                          .output = sends ? at::Tensor() : tensor,
                                          .root = root,
                                          .timeout = how.timeout});
                    });
}

WeftBackend::WorkPtr WeftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only(tensors, "reduce");
  if (auto* const devices = device_backend(tensor))
    return device_call("reduce", tensors,
                       [&](Tensors& dense) { return devices->reduce(dense, options); });
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  require_root("reduce", options.rootRank, size_);
  return collective({c10d::OpType::REDUCE, "weft:reduce", tensors, tensors, root == rank_}, how,
                    [this, tensor, op = options.reduceOp, root, how] {
                      internal::reduce(*engine_, rank_ == root ? tensor : at::Tensor(), tensor, op,
                                       root, how.timeout);
                    });
}

WeftBackend::WorkPtr WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  if (auto* const devices = device_backend(input))
    return device_call("all_gather", output, [&](at::Tensor& result) {
      at::Tensor dense = dense_of(input);
      return devices->_allgather_base(result, dense, options);
    });
  const How how = this->how(options);
  require_parts("all_gather", output, input, size_);
  return collective(
      {c10d::OpType::_ALLGATHER_BASE, "weft:all_gather", {input}, {output}}, how,
      [this, output, input, how] { internal::all_gather(*engine_, output, input, how.timeout); });
}

WeftBackend::WorkPtr WeftBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (auto* const devices = device_backend(inputs))
    return device_call("all_gather", outputs, [&](Tensors& results) {
      Tensors dense = dense_of(inputs);
      return devices->allgather_into_tensor_coalesced(results, dense, options);
    });
  const How how = this->how(options);
  require_list("all_gather", outputs, static_cast<int>(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_parts("all_gather", outputs[i], inputs[i], size_);
  require_apart("all_gather", outputs);
  return collective({c10d::OpType::ALLGATHER_COALESCED, "weft:all_gather", inputs, outputs}, how,
                    [this, outputs, inputs, how] {
                      const Tensors own = apart_from(outputs, inputs);
                      for (std::size_t i = 0; i < own.size(); ++i)
                        internal::all_gather(*engine_, outputs[i], own[i], how.timeout,
                                             own.size() - 1 - i);
                    });
}

WeftBackend::WorkPtr WeftBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  only(inputs, "all_gather");
  if (auto* const devices = device_backend(inputs[0]))
    return device_call("all_gather", outputs, [&](TensorLists& results) {
      Tensors dense = dense_of(inputs);
      return devices->allgather(results, dense, options);
    });
  return allgather_lists({c10d::OpType::ALLGATHER, "weft:all_gather", inputs, {}}, outputs, inputs,
                         how(options));
}

WeftBackend::WorkPtr WeftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  // The caller's lists are ordered by rank, weft's by tensor.
  TensorLists by_tensor(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const auto& list : outputs) {
      require_list("all_gather_coalesced", list, static_cast<int>(inputs.size()));
      by_tensor[i].push_back(list[i]);
    }
  }
  return allgather_lists({c10d::OpType::ALLGATHER_COALESCED, "weft:all_gather", inputs, {}},
                         by_tensor, inputs, how(options));
}

WeftBackend::WorkPtr WeftBackend::allgather_lists(Shown shown, const TensorLists& outputs,
                                                  const Tensors& inputs, const How& how) {
  WEFT_REQUIRE(outputs.size() == inputs.size(),
               "all_gather: expected a list of outputs for each input");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_list("all_gather", outputs[i], size_);
    for (const auto& output : outputs[i]) require_parts("all_gather", output, inputs[i], 1);
    shown.results.insert(shown.results.end(), outputs[i].begin(), outputs[i].end());
  }
  return collective(shown, how, [this, outputs, inputs, results = shown.results, how] {
    // The first list is written before the second input is read.
    const Tensors own = inputs.size() > 1 ? apart_from(results, inputs) : inputs;
    for (std::size_t i = 0; i < own.size(); ++i)
      internal::all_gather_list(*engine_, outputs[i], own[i], how.timeout, own.size() - 1 - i);
  });
}

WeftBackend::WorkPtr WeftBackend::gather(TensorLists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const at::Tensor input = only(inputs, "gather");
  if (auto* const devices = device_backend(input))
    return device_call("gather", outputs, [&](TensorLists& results) {
      Tensors dense = dense_of(inputs);
      return devices->gather(results, dense, options);
    });
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  require_root("gather", options.rootRank, size_);
  const Tensors list = rank_ == root && !outputs.empty() ? outputs[0] : Tensors{};
  if (rank_ == root) require_list("gather", list, size_);
  for (const auto& output : list) require_parts("gather", output, input, 1);
  return collective(
      {c10d::OpType::GATHER, "weft:gather", inputs, list}, how, [this, list, input, root, how] {
        const at::Tensor flat =
            rank_ == root ? at::empty({size_, input.numel()}, input.options()) : at::Tensor();
        run_call(*engine_, {.collective = Collective::kGather,
                            .input = input,
                            .output = flat,
                            .root = root,
                            .timeout = how.timeout});
        for (std::size_t peer = 0; peer < list.size(); ++peer)
          list[peer].copy_(flat[static_cast<int64_t>(peer)].view(list[peer].sizes()));
      });
}

WeftBackend::WorkPtr WeftBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ScatterOptions& options) {
  const at::Tensor output = only(outputs, "scatter");
  if (auto* const devices = device_backend(output))
    return device_call("scatter", outputs, [&](Tensors& results) {
      TensorLists dense = dense_of(inputs);
      return devices->scatter(results, dense, options);
    });
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  require_root("scatter", options.rootRank, size_);
  const Tensors list = rank_ == root && !inputs.empty() ? inputs[0] : Tensors{};
  if (rank_ == root) require_list("scatter", list, size_);
  for (const auto& input : list) require_parts("scatter", input, output, 1);
  return collective({c10d::OpType::SCATTER, "weft:scatter", list, outputs}, how,
                    [this, list, output, root, how] {
                      run_call(*engine_, {.collective = Collective::kScatter,
                                          .input = rank_ == root ? flatten(list) : at::Tensor(),
                                          .output = output,
                                          .root = root,
                                          .timeout = how.timeout});
                    });
}

WeftBackend::WorkPtr WeftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  if (auto* const devices = device_backend(input))
    return device_call("reduce_scatter", output, [&](at::Tensor& result) {
      at::Tensor dense = dense_of(input);
      return devices->_reduce_scatter_base(result, dense, options);
    });
  const How how = this->how(options);
  require_parts("reduce_scatter", input, output, size_);
  return collective({c10d::OpType::_REDUCE_SCATTER_BASE, "weft:reduce_scatter", {input}, {output}},
                    how, [this, output, input, op = options.reduceOp, how] {
                      internal::reduce_scatter(*engine_, output, input, op, how.timeout);
                    });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (auto* const devices = device_backend(inputs))
    return device_call("reduce_scatter", outputs, [&](Tensors& results) {
      Tensors dense = dense_of(inputs);
      return devices->reduce_scatter_tensor_coalesced(results, dense, options);
    });
  const How how = this->how(options);
  require_list("reduce_scatter", outputs, static_cast<int>(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_parts("reduce_scatter", inputs[i], outputs[i], size_);
  require_apart("reduce_scatter", outputs);
  return collective(
      {c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "weft:reduce_scatter", inputs, outputs}, how,
      [this, outputs, inputs, op = options.reduceOp, how] {
        const Tensors own = apart_from(outputs, inputs);
        for (std::size_t i = 0; i < own.size(); ++i)
          internal::reduce_scatter(*engine_, outputs[i], own[i], op, how.timeout,
                                   own.size() - 1 - i);
      });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = only(outputs, "reduce_scatter");
  if (auto* const devices = device_backend(output))
    return device_call("reduce_scatter", outputs, [&](Tensors& results) {
      TensorLists dense = dense_of(inputs);
      return devices->reduce_scatter(results, dense, options);
    });
  WEFT_REQUIRE(inputs.size() == 1, "reduce_scatter: expected one list of inputs");
  require_list("reduce_scatter", inputs[0], size_);
  const Tensors& list = inputs[0];
  require_parts("reduce_scatter", list[static_cast<std::size_t>(rank_)], output, 1);
  for (const auto& input : list) require_same_type("reduce_scatter", input, output);
  const bool even = std::all_of(list.begin(), list.end(), [&](const at::Tensor& input) {
    return input.numel() == output.numel();
  });
  const How how = this->how(options);
  return collective(
      {c10d::OpType::REDUCE_SCATTER, "weft:reduce_scatter", list, outputs}, how,
      [this, output, list, even, op = options.reduceOp, how] {
        if (even) return internal::reduce_scatter(*engine_, output, flatten(list), op, how.timeout);
        const Tensors own = apart_from({output}, list);
        for (int root = 0; root < size_; ++root)
          internal::reduce(*engine_, root == rank_ ? output : at::Tensor(),
                           own[static_cast<std::size_t>(root)], op, root, how.timeout);
      });
}

WeftBackend::WorkPtr WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  if (auto* const devices = device_backend(input))
    return device_call("all_to_all", output, [&](at::Tensor& result) {
      at::Tensor dense = dense_of(input);
      return devices->alltoall_base(result, dense, output_splits, input_splits, options);
    });
  const How how = this->how(options);
  const Shown shown{c10d::OpType::ALLTOALL_BASE, "weft:all_to_all", {input}, {output}};
  require_same_type("all_to_all", output, input);
  if (output_splits.empty() && input_splits.empty()) {
    WEFT_REQUIRE(input.numel() % size_ == 0 && input.numel() == output.numel(),
                 "all_to_all: input and output need the same number of elements, divisible by " +
                     std::to_string(size_) + " ranks");
    return collective(shown, how, [this, output, input, how] {
      run_call(*engine_, {.collective = Collective::kAllToAll,
                          .input = input,
                          .output = output,
                          .timeout = how.timeout});
    });
  }
  const auto split = [&](const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
    std::vector<int64_t> each =
        sizes.empty()
            ? std::vector<int64_t>(static_cast<std::size_t>(size_), tensor.size(0) / size_)
            : sizes;
    WEFT_REQUIRE(static_cast<int>(each.size()) == size_ &&
                     std::accumulate(each.begin(), each.end(), int64_t{0}) == tensor.size(0),
                 "all_to_all: there must be one split size per rank, and they must add up to the "
                 "tensor's first dimension");
    return tensor.split_with_sizes(each, 0);
  };
  return collective(
      shown, how,
      [this, outputs = split(output, output_splits), inputs = split(input, input_splits),
       timeout = how.timeout] { internal::all_to_all_uneven(*engine_, outputs, inputs, timeout); });
}

WeftBackend::WorkPtr WeftBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  if (auto* const devices = device_backend(inputs))
    return device_call("all_to_all", outputs, [&](Tensors& results) {
      Tensors dense = dense_of(inputs);
      return devices->alltoall(results, dense, options);
    });
  const How how = this->how(options);
  require_list("all_to_all", outputs, size_);
  require_list("all_to_all", inputs, size_);
  for (const auto* list : {&outputs, &inputs}) {
    for (const auto& tensor : *list) require_same_type("all_to_all", tensor, outputs[0]);
  }
  require_apart("all_to_all", outputs);
  return collective({c10d::OpType::ALLTOALL, "weft:all_to_all", inputs, outputs}, how,
                    [this, outputs, inputs, timeout = how.timeout] {
                      internal::all_to_all_uneven(*engine_, outputs, inputs, timeout);
                    });
}

}  // namespace weft::comm::internal
