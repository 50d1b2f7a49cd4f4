// A model as a list of blocks that knows nothing of parallelism but the contexts it is handed: what parallelize() takes.
//
//   BlockModel model;
//   model.blocks.push_back({"embedding", [](const Contexts& with) { return block(Embedding(table, with.tp)); }});
//   for (int i = 0; i < 12; ++i) model.blocks.push_back({"blocks." + std::to_string(i), [](const Contexts& with) { … }});
//   model.loss = [](const Tensors& y, const Tensors& t, const Contexts& with) { return cross_entropy(y[0], t[0], {}, with.tp); };
//   model.splits = {{"heads", 12}, {"hidden", 3072}};
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/engine/block.h"
#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/experts/context.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

// What a block is handed. A new form of parallelism inside layers gets a member here, which is plain in a group of one.
struct Contexts {
  // Of this block alone: its initial values follow from the plan's seed and the block's number, its dropout from those of the step, the
  // replica and the micro-batch too, whoever has which block.
  TensorParallel tp;
  // Inputs and targets are whole sequences, the same on all ranks of cp: the first block and the loss take their part of them
  // (ContextParallel::part, mean). All ranks of cp draw the same numbers for dropout.
  ContextParallel cp = {};
  // Experts are divided over it, and balanced over all ranks that share the batch: those of cp, with their parts of its sequences, too.
  ExpertParallel ep = {};
  // Blocks of the same stage that were made before this one, by name: whose modules may be children here too, so that a weight is one.
  std::map<std::string, std::shared_ptr<torch::nn::Module>> before = {};
  // Recompute::kSelective: blocks compute again by themselves, in backward, what is large and cheap.
  bool selective = false;
};

// One entry of a model: how a block is made.
struct BlockSpec {
  std::string name;  // distinct; Block::name
  // Called once for each block of this rank's (and once more where stages are cut by measured times).
  std::function<Block(const Contexts&)> make;
};

// A function of the last block's outputs and of targets, such as a loss. Takes lambdas of (Tensor output, Tensor target), which get the
// first of each; of (Tensors outputs, Tensors targets); and of these and Contexts.
class OutputFunction {
 public:
  OutputFunction() = default;
  template <class Fn, class = std::enable_if_t<!std::is_same_v<std::decay_t<Fn>, OutputFunction>>>
  OutputFunction(Fn fn) {  // NOLINT(google-explicit-constructor): lambdas stand for it
    if constexpr (std::is_invocable_v<Fn&, const at::Tensor&, const at::Tensor&>) {
      call_ = [fn = std::move(fn)](const Tensors& outputs, const Tensors& targets, const Contexts&) mutable {
        return at::Tensor(fn(outputs.at(0), targets.at(0)));
      };
    } else if constexpr (std::is_invocable_v<Fn&, const Tensors&, const Tensors&>) {
      call_ = [fn = std::move(fn)](const Tensors& outputs, const Tensors& targets, const Contexts&) mutable {
        return at::Tensor(fn(outputs, targets));
      };
    } else {
      call_ = std::move(fn);
    }
  }

  at::Tensor operator()(const Tensors& outputs, const Tensors& targets, const Contexts& contexts) const {
    return call_(outputs, targets, contexts);
  }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  std::function<at::Tensor(const Tensors&, const Tensors&, const Contexts&)> call_;
};

struct BlockModel {
  std::vector<BlockSpec> blocks;
  // The mean over the samples of the first target, along its first dimension: a number, the same on all ranks of `contexts.tp` and of
  // `contexts.cp`, with what experts add (MixtureOfExperts::auxiliary, which goes from block to block as one tensor [1] more; over cp its
  // mean by the positions that each rank has).
  OutputFunction loss = {};
  // What tensor parallelism divides: {"heads", 12}. Checked before anything is made.
  std::vector<std::pair<std::string, std::int64_t>> splits = {};
  // What context parallelism takes: heads of attention, and of its keys and values. 0: blocks and loss do not use Contexts::cp, and plans
  // with it are refused.
  std::int64_t heads = 0, kv_heads = 0;
  // Of each layer of experts; 0: there are none. Such blocks, and the loss, take a first dimension of 0 as well (the loss is then 0, with a
  // graph to the outputs): a rank has no row that others' experts would count.
  std::int64_t experts = 0;
  // What predict() gives, where sequences lie over cp: the whole of what the last block gives on each rank. Collective over cp. Without it
  // each rank gets its part.
  std::function<Tensors(const Tensors& outputs, const Contexts& contexts)> join = nullptr;
  bool selective = false;  // blocks heed Contexts::selective; else a plan that asks for it is refused
};

}  // namespace weft::parallel
