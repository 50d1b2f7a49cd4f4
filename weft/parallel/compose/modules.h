// blocks_of() turns your own model into the BlockModel that parallelize() and Trainer take: any
// torch::nn::Module, a torch::nn::Sequential, or a list of blocks.
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

// Takes blocks that exist already. Each rank makes all of them and trains its own. Ranks get the
// first replica's initial values. A block's name is the prefix of its parameters' names in
// checkpoints; a block without a name is called by its number.
// The modules stay the caller's. After a step, those of other stages have no values, and an
// operation on them throws an error that says so. ParallelModel::gather() gives all of them the
// trained values; Trainer::run() calls it at its end.
// Besides data parallelism, a list of blocks allows pipeline stages (pp), ZeRO-3 that gathers one
// block at a time, and recomputation. A parameter of blocks in different stages must be in
// Block::tied of each; a batch norm cannot be in two stages.
BlockModel blocks_of(std::vector<Block> blocks);

// Makes one block of each entry of a Sequential. The names are those in the Sequential.
BlockModel blocks_of(const torch::nn::Sequential& sequential);

// Makes one block of a whole module, with the module's own names, for dp and fsdp. The module's
// forward takes one tensor and returns one; for other modules pass a Block.
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
