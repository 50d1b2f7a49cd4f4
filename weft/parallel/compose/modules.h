// Models of one's own for parallelize() and Trainer: any torch::nn::Module, a torch::nn::Sequential, a list of blocks.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/compose/model.h"

namespace torch::nn {
class Sequential;
}

namespace weft::parallel {

// Blocks that exist already. Each rank makes them all and keeps its own; ranks get the first replica's initial values. Their names begin
// those of their parameters in checkpoints; blocks without one are called by their numbers.
// What a list makes possible, beside data parallelism: pipeline stages (pp), ZeRO-3 that gathers a block at a time, recomputation.
BlockModel blocks_of(std::vector<Block> blocks);

// The entries of a Sequential, a block each; names as in the Sequential.
BlockModel blocks_of(const torch::nn::Sequential& sequential);

// A whole module as one block, with its own names: dp and fsdp. Its forward takes one tensor and gives one; for others give a Block.
template <class ModuleT>
BlockModel blocks_of(std::shared_ptr<ModuleT> module) {
  Block whole = block("model", std::move(module));
  whole.prefix = "";
  return blocks_of(std::vector<Block>{std::move(whole)});
}
template <class Holder>
auto blocks_of(Holder holder) -> decltype(blocks_of(holder.ptr())) {
  return blocks_of(holder.ptr());
}

}  // namespace weft::parallel
