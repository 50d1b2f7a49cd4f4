// Makes a block that consists of several modules.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/block.h"

namespace weft::models::internal {

using Children = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

// Returns a block whose parameters have the names of the whole net. `children` are its modules and
// their names in the whole net. `forward` keeps the modules alive.
engine::Block block_of(std::string name, const Children& children,
                       std::function<at::Tensor(const at::Tensor&)> forward);

}  // namespace weft::models::internal
