// Ranks that a command starts on this machine.
#pragma once

namespace weft::cli {

// Processors of this machine, at least 1.
int processors();

// Removes OMP_NUM_THREADS from the environment if it is empty or no number above 0: OpenMP ignores
// it then, and it counts as unset.
void forget_unusable_threads();

// Divides the processors among the ranks through OMP_NUM_THREADS, unless it is set. Called before
// the fork, so that each rank inherits the variable.
void share_cores(int ranks);

// Makes libtorch use the threads that share_cores() has given to this process.
void use_threads();

}  // namespace weft::cli
