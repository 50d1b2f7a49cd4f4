// BlockModel: a model as a list of blocks, the input of parallelize(). Blocks know nothing of
// parallelism except the contexts that they get.
//
//   BlockModel model;
//   model.blocks.push_back({"embedding", [](const Contexts& with) {
//     return block(Embedding(table, with.tp));
//   }});
//   for (int i = 0; i < 12; ++i)
//     model.blocks.push_back({"blocks." + std::to_string(i), [](const Contexts& with) { … }});
//   model.loss = [](const Tensors& y, const Tensors& t, const Contexts& with) {
//     return cross_entropy(y[0], t[0], {}, with.tp);
//   };
//   model.splits = {{"heads", 12}, {"hidden", 3072}};
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/engine/block.h"
#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/experts/context.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

using engine::Block;
using engine::block;
using engine::Tensors;

// Ranks that share the work of a block, for each form of parallelism inside layers. Each member is
// plain in a group of one. A new form of parallelism inside layers gets a member here.
struct Contexts {
  // Tensor parallelism and random numbers of this block alone. Initial values follow from the
  // plan's seed and the block's number. Dropout follows from these and from the step, the replica
  // and the micro-batch. Neither depends on which rank has the block.
  TensorParallel tp;
  // Context parallelism. Inputs and targets are whole sequences, the same on all ranks of cp. The
  // first block and the loss take their part of them (ContextParallel::part, mean). All ranks of cp
  // draw the same numbers for dropout.
  ContextParallel cp = {};
  // Expert parallelism. Experts are divided over its ranks. They are balanced over all ranks that
  // share the batch, also over ranks of cp, which have parts of its sequences.
  ExpertParallel ep = {};
  // Blocks of the same stage that were made before this one, by name. Their modules may be children
  // of this block too, so that both share one weight.
  std::map<std::string, std::shared_ptr<torch::nn::Module>> before = {};
  // True with Recompute::kSelective: blocks recompute large, cheap activations in backward by
  // themselves.
  bool selective = false;
};

// One entry of a model: a name, and a function that makes the block.
struct BlockSpec {
  std::string name;  // Distinct name (Block::name).
  // Called once for each block of this rank, and once more if stages are cut by measured times.
  std::function<Block(const Contexts&)> make;
  // The caller's own block (blocks_of()), whose module ParallelModel::gather() fills. Empty: make()
  // makes a new module each time.
  std::optional<Block> own = std::nullopt;
};

// A function of the last block's outputs and of targets, such as a loss. It accepts lambdas of
// (Tensor output, Tensor target), which get the first of each; of (Tensors outputs, Tensors
// targets); and of these two and Contexts.
class OutputFunction {
 public:
  OutputFunction() = default;
  template <class Fn, class = std::enable_if_t<!std::is_same_v<std::decay_t<Fn>, OutputFunction>>>
  OutputFunction(Fn fn) {  // NOLINT(google-explicit-constructor): lambdas stand for it
    if constexpr (std::is_invocable_v<Fn&, const at::Tensor&, const at::Tensor&>) {
      call_ = [fn = std::move(fn)](const Tensors& outputs, const Tensors& targets,
                                   const Contexts&) mutable {
        return at::Tensor(fn(outputs.at(0), targets.at(0)));
      };
    } else if constexpr (std::is_invocable_v<Fn&, const Tensors&, const Tensors&>) {
      call_ = [fn = std::move(fn)](const Tensors& outputs, const Tensors& targets,
                                   const Contexts&) mutable {
        return at::Tensor(fn(outputs, targets));
      };
    } else {
      call_ = std::move(fn);
    }
  }

  at::Tensor operator()(const Tensors& outputs, const Tensors& targets,
                        const Contexts& contexts) const {
    return call_(outputs, targets, contexts);
  }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  std::function<at::Tensor(const Tensors&, const Tensors&, const Contexts&)> call_;
};

struct BlockModel {
  std::vector<BlockSpec> blocks;
  // Loss: the mean over the samples of the first target, along its first dimension. It is one
  // number, the same on all ranks of `contexts.tp` and `contexts.cp`. It includes the auxiliary
  // loss of experts (MixtureOfExperts::auxiliary), which goes from block to block as one more
  // tensor [1]. Over cp it includes the mean of that loss, weighted by each rank's positions.
  OutputFunction loss = {};
  // Sizes that tensor parallelism divides: {"heads", 12}. Checked before any block is made.
  std::vector<std::pair<std::string, std::int64_t>> splits = {};
  // Attention heads, and heads of keys and values, for context parallelism. 0: blocks and loss do
  // not use Contexts::cp, and plans with cp are rejected.
  std::int64_t heads = 0, kv_heads = 0;
  // Number of experts in each layer of experts. 0: no such layers. Blocks with experts, and the
  // loss, must also accept a first dimension of 0, since made-up rows would count for other ranks'
  // experts. The loss is then 0, with a graph to the outputs.
  std::int64_t experts = 0;
  // Joins the results of predict() where sequences are divided over cp: returns the whole of the
  // last block's outputs on each rank. Collective over cp. Without it each rank gets its part.
  std::function<Tensors(const Tensors& outputs, const Contexts& contexts)> join = nullptr;
  // True: blocks obey Contexts::selective. False: a plan with selective recomputation is rejected.
  bool selective = false;
};

}  // namespace weft::parallel
