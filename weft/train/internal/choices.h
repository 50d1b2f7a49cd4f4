// A recipe's words as the options of the parts that do the work.
#pragma once

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/data/augment.h"
#include "weft/data/image_set.h"
#include "weft/engine/data_parallel.h"
#include "weft/models/loss.h"
#include "weft/models/registry.h"
#include "weft/optim/learning_rate.h"
#include "weft/train/recipe.h"

namespace weft::train::internal {

data::SetOptions set_options(const Config& config);
// With crop and flip for training, without for evaluation; normalised by the training images' mean and deviation.
data::AugmentOptions augment_options(const Config& config, const data::ImageSet& train);
models::ModelOptions model_options(const Config& config, const data::ImageSet& train);
models::LossOptions loss_options(const Config& config);
parallel::DataParallelOptions parallel_options(const Config& config);
// The first for all parameters alike, whatever optimizer.decay_vectors says.
parallel::OptimizerSpec optimizer_choice(const Config& config);
parallel::OptimizerSpec optimizer_choice(const Config& config, const torch::nn::Module& module);
// Where train.reproducible is set: one thread computes, and sums have one order. Throws kBadConfig for a group that adds in another.
void settle_order(const Config& config, const Group& world);
// In epochs.
optim::LearningRate learning_rate(const Config& config, const Batches& batches);

}  // namespace weft::train::internal
