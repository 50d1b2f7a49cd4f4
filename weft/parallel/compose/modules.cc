#include "weft/parallel/compose/modules.h"

#include <torch/torch.h>

#include "weft/base/error.h"

namespace weft::parallel {

BlockModel blocks_of(std::vector<Block> blocks) {
  BlockModel model;
  for (Block& one : blocks) {
    WEFT_REQUIRE(one.module && one.forward, "blocks_of: a block has no module or no forward");
    std::string name = one.name.empty() ? std::to_string(model.blocks.size()) : one.name;
    model.blocks.push_back(
        {std::move(name), [block = std::move(one)](const Contexts&) { return block; }});
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
