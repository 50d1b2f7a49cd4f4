// Data parallelism for any torch::nn::Module: each rank computes on its share of the batch, gradients are averaged, weights stay the same.
//
//   auto world = weft::init();
//   auto model = weft::parallel::data_parallel(Net(), world);
//   auto optim = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));
//   for (auto& batch : loader) {
//     torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target).backward();
//     optim.step();
//     optim.zero_grad();
//   }
//
// With optimizer(), on one host, weights and optimizer state exist once, in shared memory: each rank reads the others' gradients where
// autograd left them, updates a share of the weights, and everybody sees it (optimizer.h). With any torch::optim optimizer instead,
// backward() ends with the averaged gradient in every rank's grad(). Across hosts, gradients travel in buckets while backward goes on.
//
// Every rank calls forward, backward and step the same number of times. Before step(), one backward() outside no_sync(): a second one is an
// error, since peers may have read the first one's gradients. Parameters that a rank does not use count as zero there; those that no rank
// used keep no gradient. Batches may differ in size: gradients are weighted by samples (a mean loss over the local batch is assumed).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/engine/optimizer.h"

namespace torch::nn {
class Module;
}

namespace weft::checkpoint {
class Reader;
}

namespace weft::parallel {

// Where weights and optimizer state are.
enum class Weights {
  kAuto,
  kShared,   // once a host: ranks that read each other's memory, each of which updates a share
  kPrivate,  // in each rank's own memory: whole, or at ZeRO-3 its part, gathered block by block
};
// "auto", "shared", "private".
const char* to_string(Weights weights);
// Parses what to_string() gives. Throws Error(kInvalidArgument) naming the three.
Weights parse_weights(const std::string& name);

struct DataParallelOptions {
  // How gradients are combined over ranks: weighted by the samples that forward() counted, one rank one vote, or plainly summed.
  enum class Average { kBySamples, kByRanks, kSum };
  Average average = Average::kBySamples;
  // Used with optimizer() where all ranks are on one host. kAuto shares the weights of models above a million parameters. For smaller
  // ones it times steps at the start and takes the faster way. kPrivate averages the gradients; then each rank updates all its weights.
  Weights weights = Weights::kAuto;
  // What float32 gradients are compressed with on their way to other hosts: "none", "bf16", "int8:64", "topk:0.01", "powersgd:4", "auto", …
  // (weft/compress/spec.h). Between ranks of one host gradients are summed as they are: memory that peers read in place is never
  // converted. The first step, in which the buckets are planned, is not compressed either.
  // Replicas of split layers take parallelize()'s: parameters that ranks of tensor parallelism have alike would be rounded apart here.
  std::string codec = "none";
  // Rank 0's buffers (running statistics) are everybody's after each step.
  bool sync_buffers = true;
  // Messages: gradients travel in buckets of this size, the first one smaller so that the first transfer starts early. 0: 25 MiB, tuned by
  // the cost measured in the first steps where no bit of the result depends on it (sums over two ranks or hosts, without a codec).
  std::size_t bucket_bytes = 0;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  // Shared weights: also update during backward(), as gradients become ready on all ranks, instead of in step() alone. Weights then change
  // before step(), so a step can no longer be skipped.
  bool update_in_backward = false;
  // Messages, with optimizer() and without max_grad_norm: step() returns while gradients still travel, front layers' first. Weights are
  // updated before the first operation of this thread on them, so that the transfer overlaps the next forward. The result has the same
  // bits. Whoever reads weights otherwise (data_ptr(), another thread) calls wait_for_weights() first. Codecs of several rounds (powersgd;
  // more than two ranks) and codecs over hosts of several ranks are waited for in step() all the same.
  bool overlap_forward = false;
};

// What the engine knows of one rank's model. Shared by the handles, the hooks on the parameters and the optimizer.
class Engine;
class Replica;

// While it lives, gradients stay on their ranks and add up; they are combined with the first backward() after it, or by step().
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<Engine> engine);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<Engine> engine_;
};

// The part of DataParallel that does not depend on the module's type.
class DataParallelBase {
 public:
  const Group& group() const;
  using NoSync = parallel::NoSync;
  [[nodiscard]] NoSync no_sync();
  // Says how many samples the next backward stands for, where forward() cannot see it. 0: this rank has no batch (call no backward).
  void set_samples(double samples);
  // Until the weights are those of the last step(), with overlap_forward. Throws what went wrong meanwhile.
  void wait_for_weights();
  // The seconds that this rank has spent since the last call on: reducing and updating; waiting for peers.
  struct Times {
    double work = 0, wait = 0;
  };
  Times take_times();
  // This rank's part of what the codec remembers of gradients that were not sent, after step(): the part "codec" of a checkpoint. Views,
  // of the gradients' size or twice, valid until the next step. Empty where there is no codec. Not collective.
  checkpoint::Slices codec_slices();
  // Collective. The memory of another codec, model or number of ranks is not loaded, with a warning.
  void load_codec(const checkpoint::Reader& saved);
  // One line on how gradients travel: "weights shared by 2 ranks of this host, 62 parameters in 18 buckets".
  std::string describe() const;

 protected:
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, Group group, DataParallelOptions options);
  void count_samples(const at::Tensor& first) const;
  template <class T>
  void count_samples(const T&) const {}
  Optimizer make_optimizer(OptimizerSpec spec) const;

  std::shared_ptr<Replica> replica_;
};

// A module whose gradients are averaged over `group`. Behaves like the module's own holder: model->anything.
template <class ModuleT>
class DataParallel : public DataParallelBase {
 public:
  DataParallel(std::shared_ptr<ModuleT> module, Group group, DataParallelOptions options)
      : DataParallelBase(module, std::move(group), std::move(options)), module_(std::move(module)) {}

  ModuleT* operator->() const { return module_.get(); }
  ModuleT& operator*() const { return *module_; }
  const std::shared_ptr<ModuleT>& module() const { return module_; }

  // The module's forward; counts the first argument's first dimension as samples.
  template <class First, class... Rest>
  auto forward(First&& first, Rest&&... rest) const {
    count_samples(first);
    return module_->forward(std::forward<First>(first), std::forward<Rest>(rest)...);
  }

  // An optimizer for the module's parameters: torch::optim::SGD, RMSprop, Adagrad, Adam or AdamW, by its options. Collective; call it once.
  template <class TorchOptimizer, class TorchOptions>
  Optimizer optimizer(const TorchOptions& options, const OptimizerExtras& extras = {}) const {
    return make_optimizer(optimizer_spec(options, extras));
  }
  Optimizer optimizer(const OptimizerSpec& spec) const { return make_optimizer(spec); }

 private:
  std::shared_ptr<ModuleT> module_;
};

// Makes `module` data parallel: checks that all ranks hold the same parameters (kInvalidArgument naming the first that differs) and gives
// everybody rank 0's values. Collective. Takes a module holder (TORCH_MODULE's Net) or a shared_ptr.
template <class ModuleT>
DataParallel<ModuleT> data_parallel(std::shared_ptr<ModuleT> module, Group group, DataParallelOptions options = {}) {
  return DataParallel<ModuleT>(std::move(module), std::move(group), std::move(options));
}
template <class Holder>
auto data_parallel(Holder holder, Group group, DataParallelOptions options = {}) -> DataParallel<typename Holder::ContainedType> {
  return DataParallel<typename Holder::ContainedType>(holder.ptr(), std::move(group), std::move(options));
}

}  // namespace weft::parallel
