// The keys [optimizer] of a recipe as an optimizer, and back.
#pragma once

#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/engine/optimizer.h"

namespace weft::train::internal {

// Each rule uses some of them.
struct OptimizerKeys {
  std::string name = "sgd";
  double lr = 0.1, momentum = 0.9;
  bool nesterov = false;
  double trust = 1e-3, update_clip = 1, adam_lr = 0.015, alpha = 0.99;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0, l1 = 0, max_grad_norm = 0;
};

// Throws Error(kBadConfig) for betas that are not two numbers, and for nesterov without momentum.
void check_optimizer_keys(const Config& config);
engine::OptimizerSpec optimizer_of(const OptimizerKeys& keys);
OptimizerKeys keys_of(const engine::OptimizerSpec& spec);

}  // namespace weft::train::internal
