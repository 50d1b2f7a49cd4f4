// The search for the newest complete checkpoint, also while a job saves and removes checkpoints.
#pragma once

#include <string>

#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/internal/save_job.h"

namespace weft::checkpoint::internal {

// As latest(). Each rank verifies its share of the bytes, and all ranks get the same answer. An
// error of one rank is thrown on all ranks. Collective.
Latest find_latest(const std::string& dir, const Ranks& ranks);

}  // namespace weft::checkpoint::internal
