// Direct calls of the MPI that the program is linked with.
#pragma once

namespace weft::bench {

// Initializes MPI so that every thread may call it. MPI is finalized when the process exits, after
// everything that was created later.
void start_mpi();
void plain_all_reduce(float* data, int count);
void plain_barrier();
double slowest(double mine);

}  // namespace weft::bench
