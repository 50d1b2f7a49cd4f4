// The trained weights for others than the trainer: the caller's modules, and files.
#pragma once

#include <string>

#include "weft/comm/group.h"
#include "weft/train/internal/learner.h"

namespace weft::train::internal {

// Ends training: the model has the result of the strategy, and the caller's modules have the whole
// trained model on every rank. If a machine has too little memory for it, rank 0 logs a warning,
// and operations on the modules throw an error that names Trainer::save(). Collective.
void hand_over(Learner& learner, const Group& world);

// Trainer::save(). Collective.
void save_weights(Learner& learner, const Group& world, const std::string& folder);

}  // namespace weft::train::internal
