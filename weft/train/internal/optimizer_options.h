// The keys [optimizer] of a recipe as an optimizer, and back.
#pragma once

#include "weft/base/config.h"
#include "weft/engine/optimizer.h"
#include "weft/train/internal/config_writer.h"

namespace weft::train::internal {

// Throws Error(kBadConfig) for betas that are not two numbers.
parallel::OptimizerSpec optimizer_of(const Config& config);
void write_optimizer(const parallel::OptimizerSpec& spec, ConfigWriter& to);

}  // namespace weft::train::internal
