// What the passes share, and those that give gradients and weights their places (placement.cc).
#pragma once

#include <string>

#include "weft/parallel/compose/internal/composed.h"

namespace weft::parallel::internal {

// "3 blocks"; "dp=2".
std::string count(std::size_t number, const char* what);
std::string axis(const Mesh& mesh, const char* name);
// Plan::without names the pass.
bool left_out(const Composed& composed, const std::string& pass);

std::string replicate(Composed& composed);
std::string shard_parameters(Composed& composed);

}  // namespace weft::parallel::internal
