// Ranks that a command starts on this machine.
#pragma once

#include <optional>

namespace weft::cli {

// Processors of this machine, at least 1.
int processors();

// Removes OMP_NUM_THREADS from the environment if it is empty or no number above 0: OpenMP ignores
// it then, and it counts as unset.
void forget_unusable_threads();

// Divides the processors among the ranks through OMP_NUM_THREADS, unless it is set. Called before
// the fork, so that each rank inherits the variable.
void share_cores(int ranks);

// The number that OMP_NUM_THREADS begins with ("4,2" is for nested regions); nullopt for any other
// text, which OpenMP ignores, too.
std::optional<int> threads_by_environment();

}  // namespace weft::cli
