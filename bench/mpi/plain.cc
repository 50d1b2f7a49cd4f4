#include "bench/mpi/plain.h"

#include <mpi.h>

#include <cstdlib>

namespace weft::bench {

void start_mpi() {
  int given = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given);
  std::atexit([] { MPI_Finalize(); });
}

void plain_all_reduce(float* data, int count) {
  MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void plain_barrier() { MPI_Barrier(MPI_COMM_WORLD); }

double slowest(double mine) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

}  // namespace weft::bench
