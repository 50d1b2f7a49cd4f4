// Data parallelism for any torch::nn::Module: each rank computes on its share of the batch,
// gradients are averaged, and weights stay the same on all ranks.
//
//   auto world = weft::init();
//   auto model = weft::data_parallel(Net(), world);
//   auto optim = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));
//   for (auto& batch : loader) {
//     torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target).backward();
//     optim.step();
//     optim.zero_grad();
//   }
//
// With optimizer(), on one host: weights and optimizer state exist once, in shared memory. Each
// rank reads the others' gradients where autograd left them and updates a share of the weights. All
// ranks see the result (optimizer.h).
// With a torch::optim optimizer: backward() ends with the averaged gradient in every rank's grad().
// Across hosts: gradients travel in buckets while backward goes on.
// On a device: move the module there first. Weights, gradients and optimizer state stay on it
// (docs/gpus.md).
//
// A model may also be made without a group. bind() then gives it one, and later another one, with a
// new optimizer state. elastic::run() calls it (weft/elastic/run.h).
//
// Rules
// - Every rank calls forward, backward and step the same number of times.
// - Call backward() once outside no_sync() before each step(). A second one is an error, unless
//   zero_grad() of the optimizer has dropped the first one's gradients on all ranks.
// - A parameter that a rank does not use counts as zero there. If no rank uses it, it has none.
// - Batches may differ in size. Gradients are weighted by samples, which assumes a loss that is a
//   mean over the local batch.
// - A change of the module between two steps counts as in one process, or is an error that says
//   what to do: docs/module-changes.md has the list.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/engine/optimizer.h"

namespace torch::nn {
class Module;
}

namespace weft::checkpoint {
class Reader;
}

namespace weft::engine {

// Placement of weights and optimizer state.
enum class Weights {
  kAuto,
  // One copy per host, for ranks that read each other's memory. Each rank updates a share of it.
  kShared,
  // Each rank's own memory. It holds all weights or, at ZeRO-3, the rank's part, gathered block by
  // block.
  kPrivate,
};
// "auto", "shared", "private".
const char* to_string(Weights weights);
// Parses what to_string() gives. Throws Error(kInvalidArgument) naming the three.
Weights parse_weights(const std::string& name);

struct DataParallelOptions {
  // Combination of gradients over ranks: kBySamples weights them by the samples that went
  // backward, kByRanks weights ranks alike, kSum adds them. kAdasum combines them layer by layer
  // (internal/adasum.h): for a power of two of ranks with private weights, without a codec.
  enum class Average { kBySamples, kByRanks, kSum, kAdasum };
  Average average = Average::kBySamples;
  // Placement of weights, with optimizer() and all ranks on one host. kAuto shares the weights of
  // models above a million parameters. For smaller models it times steps at the start and takes the
  // faster way. kPrivate averages the gradients; then each rank updates all its weights.
  Weights weights = Weights::kAuto;
  // Codec that compresses float32 gradients on their way to other hosts: "none", "bf16", "int8:64",
  // "topk:0.01", "powersgd:4", "auto", … (weft/compress/spec.h). Not compressed are gradients
  // between ranks of one host, and those of the first step, which plans the buckets.
  // For replicas of tensor-parallel layers use the codec of parallelize(). This one would round
  // copies of a parameter on ranks of tensor parallelism to different values.
  std::string codec = "none";
  // Copy rank 0's buffers (running statistics) to all ranks after each step.
  bool sync_buffers = true;
  // Bucket size, where gradients travel as messages. The first bucket is smaller, to start early.
  // 0: 25 MiB, then tuned by the cost measured in the first steps where no bit of the result
  // depends on it: sums over two ranks or hosts, without a codec.
  std::size_t bucket_bytes = 0;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  // Shared weights only: update weights also during backward(), as gradients become ready on all
  // ranks, not only in step(). Weights then change before step(), so a step can no longer be
  // skipped.
  bool update_in_backward = false;
  // Gradients as messages, with optimizer() and without max_grad_norm: step() returns while
  // gradients still travel, those of the front layers first. Each weight is updated before this
  // thread's first operation on it, so the transfer overlaps the next forward. The result has the
  // same bits. Call wait_for_weights() before you read or write weights in another way (data(),
  // data_ptr(), a view that you have kept, another thread).
  // step() still waits for codecs over hosts of several ranks and for codecs of several rounds.
  bool overlap_forward = false;
};

// State of one rank's model in the engine. The handles, the parameters' hooks and the optimizer
// share it.
class Engine;
// A model with its options, its optimizer's options and, where it has a group, its engine.
class Binding;

// Gradient accumulation: while it lives, gradients stay on their ranks and add up, until the first
// backward() after it, or step().
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<Engine> engine);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<Engine> engine_;
};

// All of DataParallel but the module's type.
class DataParallelBase {
 public:
  // Gives the model a group, in place of any earlier one: checks that all ranks have the same
  // parameters, copies rank 0's values to all ranks, and makes the state of the optimizer, if any,
  // anew. Copies of this object and optimizers made from it have the new group too. Throws
  // kInvalidArgument, naming the first parameter that differs. The models of a group share a
  // duplicate of it (Group::attach()) for their collectives. Collective over `group`.
  void bind(Group group);
  // Takes the group away and drops the gradients. The module keeps the weights; shared ones stay
  // shared until the next bind(). Not collective, also if the group has failed.
  void unbind();
  bool is_bound() const;
  // The functions below throw kInvalidArgument if the model has no group.
  const Group& group() const;
  using NoSync = engine::NoSync;
  [[nodiscard]] NoSync no_sync();
  // Sets the samples of this step, where forward() cannot see them. 0: this rank has no batch.
  void set_samples(double samples);
  // With overlap_forward: waits until the weights are those of the last step(). Throws any error of
  // that step.
  void wait_for_weights();
  // Seconds of this rank since the last call: `work` to reduce and update, `wait` for peers.
  struct Times {
    double work = 0, wait = 0;
  };
  Times take_times();
  // This rank's part of the codec's memory, the gradients that were not sent, after step(): the
  // part "codec" of a checkpoint, as views valid until the next step. Not collective.
  checkpoint::Slices codec_slices();
  // Loads the codec's memory. It warns and loads nothing if the memory is of another codec, model
  // or number of ranks. Collective.
  void load_codec(const checkpoint::Reader& saved);
  // This rank's part of the state, as a part of a checkpoint: parameters and buffers by their
  // names, "<parameter>.exp_avg" and the like, "<parameter>.step" and "steps". Views of the model's
  // memory, valid until the next step or load. All ranks' slices together are the whole state,
  // once. Complex buffers are pairs of reals (checkpoint::plain_view). Not collective.
  checkpoint::Slices shards();
  // Loads what any number of ranks returned from shards(). Throws kInvalidArgument on all ranks if
  // a slice is missing or has another shape; nothing is changed then. Collective.
  void load_shards(const checkpoint::SliceSource& source);
  // Learning rate of the optimizer; 0 without one. It needs no group and outlives it.
  double lr() const;
  void set_lr(double lr);
  // The module's parameters and buffers, and the optimizer's rule: "fc1.weight Float[128, 784]; …".
  std::string outline() const;
  // How gradients travel: "weights shared by 2 ranks of this host, 62 parameters in 18 buckets".
  std::string describe() const;

 protected:
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options);
  void begin_forward(const at::Tensor& first) const;
  void end_forward(const internal::Outputs& outputs) const;
  // Throws an error that says what to do, for some errors of libtorch.
  void explain(const c10::Error& error) const;
  Optimizer make_optimizer(OptimizerSpec spec) const;

  std::shared_ptr<Binding> binding_;
};

// A module whose gradients are averaged. It behaves like the module's holder: model->anything.
template <class ModuleT>
class DataParallel : public DataParallelBase {
 public:
  DataParallel(std::shared_ptr<ModuleT> module, DataParallelOptions options)
      : DataParallelBase(module, std::move(options)), module_(std::move(module)) {}

  ModuleT* operator->() const { return module_.get(); }
  ModuleT& operator*() const { return *module_; }
  const std::shared_ptr<ModuleT>& module() const { return module_; }

  // Calls the module's forward. The first dimension of the first argument counts as samples once
  // backward() reaches an output.
  template <class First, class... Rest>
  auto forward(First&& first, Rest&&... rest) const {
    begin_forward(internal::tensor_of(first));
    try {
      auto outputs = module_->forward(std::forward<First>(first), std::forward<Rest>(rest)...);
      end_forward(internal::Outputs(outputs));
      return outputs;
    } catch (const c10::Error& error) {
      explain(error);
      throw;
    }
  }

  // Makes the optimizer of the module's parameters from the options of torch::optim::SGD, RMSprop,
  // Adagrad, Adam or AdamW. Call it once. Collective, unless the model has no group yet.
  template <class TorchOptimizer, class TorchOptions>
  Optimizer optimizer(const TorchOptions& options, const OptimizerExtras& extras = {}) const {
    return make_optimizer(optimizer_spec(options, extras));
  }
  Optimizer optimizer(const OptimizerSpec& spec) const { return make_optimizer(spec); }

 private:
  std::shared_ptr<ModuleT> module_;
};

// Makes `module` data parallel, as bind() does. Takes a module holder (TORCH_MODULE's Net) or a
// shared_ptr. Collective.
template <class ModuleT>
[[nodiscard]] DataParallel<ModuleT> data_parallel(std::shared_ptr<ModuleT> module, Group group,
                                                  DataParallelOptions options = {}) {
  DataParallel<ModuleT> model(std::move(module), std::move(options));
  model.bind(std::move(group));
  return model;
}
template <class Holder>
[[nodiscard]] auto data_parallel(Holder holder, Group group, DataParallelOptions options = {})
    -> DataParallel<typename Holder::ContainedType> {
  return data_parallel(holder.ptr(), std::move(group), std::move(options));
}
// The same without a group, until bind().
template <class ModuleT>
[[nodiscard]] DataParallel<ModuleT> data_parallel(std::shared_ptr<ModuleT> module,
                                                  DataParallelOptions options = {}) {
  return DataParallel<ModuleT>(std::move(module), std::move(options));
}
template <class Holder>
[[nodiscard]] auto data_parallel(Holder holder, DataParallelOptions options = {})
    -> DataParallel<typename Holder::ContainedType> {
  return data_parallel(holder.ptr(), std::move(options));
}

}  // namespace weft::engine
