// Runs a function as the ranks of a subcommand: as one rank of a launcher, or forked here.
#pragma once

#include <functional>
#include <optional>

namespace weft::cli {

// Calls `rank` once for each rank, and returns the exit code of the job. Under a launcher (weft
// run, torchrun, mpirun, srun) this process is one rank, and `ranks`, if given, must be the
// launcher's number; otherwise throws Error(kBadConfig). Without one, `ranks` processes are forked,
// 1 if it is not given. They divide the cores.
int start_ranks(std::optional<int> ranks, const std::function<int()>& rank);

// Makes libtorch use the threads that share_cores() (ranks.h) has given to this process.
void use_threads();

}  // namespace weft::cli
