// Accuracy and loss over a whole data set, each sample counted once whatever the number of ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/comm/group.h"
#include "weft/data/augment.h"
#include "weft/data/image_set.h"
#include "weft/models/loss.h"
#include "weft/models/registry.h"

namespace weft::train {

struct Evaluation {
  std::int64_t samples = 0;
  double accuracy = 0;
  double loss = 0;  // mean over the samples
};

struct EvaluationOptions {
  std::shared_ptr<const data::ImageSet> set;
  data::Augment normalise;   // as in training, without crop and flip
  std::int64_t batch = 250;  // samples of a block; blocks go round the ranks
  models::LossOptions loss;
  bool bf16 = false;
};

// Collective; every rank gets the same result. The module is in evaluation mode meanwhile. Sums are taken by block and in the blocks'
// order, so that the result does not depend on the number of ranks where the forward pass does not.
Evaluation evaluate(const models::Model& model, const Group& world, const EvaluationOptions& options);

}  // namespace weft::train
