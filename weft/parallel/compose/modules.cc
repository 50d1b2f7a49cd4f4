#include "weft/parallel/compose/modules.h"

#include <torch/torch.h>

#include "weft/base/error.h"

namespace weft::parallel {
namespace {

// A model that shards its parameters leaves them in one block of memory together, or without
// memory. A second model of the same blocks cuts each parameter by itself. Its values come from a
// checkpoint or from another rank.
void give_memory_to_parameters(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module.parameters()) {
    const auto bytes = parameter.storage().nbytes();
    if (bytes == parameter.nbytes()) continue;
    parameter.set_data(bytes == 0 ? torch::zeros(parameter.sizes(), parameter.options())
                                  : parameter.detach().clone());
  }
}

}  // namespace

BlockModel blocks_of(std::vector<Block> blocks) {
  BlockModel model;
  for (Block& one : blocks) {
    WEFT_REQUIRE(one.module && one.forward, "blocks_of: a block has no module or no forward");
    std::string name = one.name.empty() ? std::to_string(model.blocks.size()) : one.name;
    model.blocks.push_back({std::move(name), [block = std::move(one)](const Contexts&) {
                              give_memory_to_parameters(*block.module);
                              return block;
                            }});
  }
  WEFT_REQUIRE(!model.blocks.empty(), "blocks_of: there are no blocks");
  return model;
}

// Puts each entry into its own Sequential, so that its batch norms can be replaced.
BlockModel blocks_of(const torch::nn::Sequential& sequential) {
  std::vector<Block> blocks;
  std::size_t number = 0;
  for (const auto& child : sequential->named_children()) {
    torch::nn::Sequential one;
    one->push_back(child.key(), *(sequential->begin() + static_cast<std::ptrdiff_t>(number++)));
    Block made = block(child.key(), one);
    made.prefix = "";
    blocks.push_back(std::move(made));
  }
  return blocks_of(std::move(blocks));
}

}  // namespace weft::parallel
