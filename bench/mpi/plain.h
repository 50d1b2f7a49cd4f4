// The MPI that the program is linked with, called as any program would.
#pragma once

namespace weft::bench {

// Every thread may call MPI. MPI ends with the process, after all that was begun later.
void start_mpi();
void plain_all_reduce(float* data, int count);
void plain_barrier();
double slowest(double mine);

}  // namespace weft::bench
