// Helpers of the passes, and the passes that place gradients and weights (placement.cc).
#pragma once

#include <string>
#include <vector>

#include "weft/parallel/compose/internal/composition.h"

namespace weft::parallel::internal {

// "dp=2".
std::string axis(const Mesh& mesh, const char* name);
// True if Plan::without names the pass.
bool left_out(const Composition& composition, const std::string& pass);

// True if this rank can have replicas: all parameters of its stages, in types that are updated
// directly. Ranks may differ, for example by their stages (Composition::keeps_whole).
bool can_keep_stages_whole(const Composition& composition);

// The name in the whole model of a tensor that is tied with another block's; null for others.
const std::string* tied_name(const Block& block, const at::Tensor& tensor);

// True if gradients are summed over replicas instead of averaged.
bool sums_gradients(const Composition& composition);

// The passes that make the stages (making.cc).
std::string cut_stages(Composition& composition);
std::string split_layers(Composition& composition);
std::string join_batch_norms(Composition& composition);

// Muon: true if AdamW updates this parameter although it may be a matrix.
bool is_not_orthogonal(const Composition& composition, const Stage& stage, const std::string& own);
// Names of the parameter's arrays of optimizer state. Muon has one for a matrix.
std::vector<std::string> state_arrays(const Composition& composition, const Stage& stage,
                                      const Parameter& parameter);

std::string replicate(Composition& composition);
std::string shard_parameters(Composition& composition);

}  // namespace weft::parallel::internal
