// Helpers of the passes, and the passes that place gradients and weights (placement.cc).
#pragma once

#include <string>
#include <vector>

#include "weft/parallel/compose/internal/composed.h"

namespace weft::parallel::internal {

// "dp=2".
std::string axis(const Mesh& mesh, const char* name);
// True if Plan::without names the pass.
bool left_out(const Composed& composed, const std::string& pass);

// The name in the whole model of a tensor that is tied with another block's; null for others.
const std::string* tied_name(const Block& block, const at::Tensor& tensor);

// True if gradients are summed over replicas instead of averaged.
bool sums_gradients(const Composed& composed);

// The passes that make the stages (making.cc).
std::string cut_stages(Composed& composed);
std::string split_layers(Composed& composed);
std::string join_batch_norms(Composed& composed);

// Muon: true if AdamW updates this parameter although it may be a matrix.
bool is_not_orthogonal(const Composed& composed, const Stage& stage, const std::string& own);
// Names of the parameter's arrays of optimizer state. Muon has one for a matrix.
std::vector<std::string> state_arrays(const Composed& composed, const Stage& stage,
                                      const Parameter& parameter);

std::string replicate(Composed& composed);
std::string shard_parameters(Composed& composed);

}  // namespace weft::parallel::internal
