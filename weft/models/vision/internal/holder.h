// Modules as the children of one, for blocks of several.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/block.h"

namespace weft::models::internal {

using Children = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

// A block of these modules, which bear their names in the whole net; `forward` keeps them alive.
parallel::Block block_of(std::string name, const Children& children,
                         std::function<at::Tensor(const at::Tensor&)> forward);

}  // namespace weft::models::internal
