#include "weft/parallel/compose/modules.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

#include "weft/base/error.h"
#include "weft/checkpoint/slice.h"
#include "weft/engine/parameter_cuts.h"

namespace weft::parallel {
namespace {

// A model leaves its parameters in one block of memory together, or without memory; those of other
// stages, and their buffers, have none. A second model of the same blocks cuts each parameter by
// itself. Its values come from a checkpoint or from another rank. A value that is not loaded is
// NaN, so that no model trains from it.
void give_memory(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const auto empty = [](const torch::Tensor& like) {
    torch::Tensor made = torch::zeros(like.sizes(), like.options().requires_grad(false));
    if (made.is_floating_point()) made.fill_(std::numeric_limits<double>::quiet_NaN());
    return made;
  };
  for (torch::Tensor& parameter : module.parameters()) {
    const bool is_there = checkpoint::has_values(parameter);
    if (is_there && parameter.storage().nbytes() == parameter.nbytes()) {
      engine::accept(parameter);  // loaded where a model had left no values
      continue;
    }
    parameter.set_data(is_there ? parameter.detach().clone() : empty(parameter));
  }
  for (torch::Tensor& buffer : module.buffers()) {
    checkpoint::has_values(buffer) ? engine::accept(buffer) : buffer.set_data(empty(buffer));
  }
}

}  // namespace

BlockModel blocks_of(std::vector<Block> blocks) {
  BlockModel model;
  for (Block& one : blocks) {
    WEFT_REQUIRE(one.module && one.forward, "blocks_of: a block has no module or no forward");
    std::string name = one.name.empty() ? std::to_string(model.blocks.size()) : one.name;
    BlockSpec spec{.name = std::move(name), .make = nullptr, .own = one};
    spec.make = [block = std::move(one)](const Contexts&) {
      give_memory(*block.module);
      return block;
    };
    model.blocks.push_back(std::move(spec));
  }
  WEFT_REQUIRE(!model.blocks.empty(), "blocks_of: there are no blocks");
  return model;
}

// Puts each entry into its own Sequential, so that its batch norms can be replaced there. `own` has
// the entries that the caller's Sequential keeps.
BlockModel blocks_of(const torch::nn::Sequential& sequential) {
  std::vector<Block> blocks, own;
  std::size_t number = 0;
  for (const auto& child : sequential->named_children()) {
    const auto& entry = *(sequential->begin() + static_cast<std::ptrdiff_t>(number++));
    for (std::vector<Block>* const list : {&blocks, &own}) {
      torch::nn::Sequential one;
      one->push_back(child.key(), entry);
      list->push_back(block(child.key(), one));
      list->back().prefix = "";
    }
  }
  BlockModel model = blocks_of(std::move(blocks));
  for (std::size_t i = 0; i < own.size(); ++i) model.blocks[i].own = std::move(own[i]);
  return model;
}

}  // namespace weft::parallel
