// One rank of the MPI found at build time. rank.h describes its commands.
#include <mpi.h>

#include "bench/network/rank.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  weft::bench::Library library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.world);
  library.all_reduce = [](float* data, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  library.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  weft::bench::serve(library);
  MPI_Finalize();
  return 0;
}
