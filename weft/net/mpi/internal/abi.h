// Table of plain functions that weft needs from an MPI. One shared library per MPI
// (plugin/plugin.cc) provides it, and weft loads the right one at run time. The table does not
// contain types of Open MPI or MPICH; handles of both fit into 8 bytes.
//
// Functions return 0 or an MPI error code; describe() returns its text. Completed requests are
// freed.
#pragma once

#include <cstdint>

namespace weft::net::mpi::internal {

struct Comm {
  std::uint64_t bits;
};
struct Request {
  std::uint64_t bits;
};
struct Arrival {
  std::int32_t source;
  std::int32_t canceled;
  std::uint64_t bytes;
};

// A collective on contiguous memory; numbers are those of schedule::Collective, DType and ReduceOp
// (never kAvg), `count` as in DirectArgs.
struct Call {
  std::int32_t collective;
  std::int32_t dtype;
  std::int32_t op;
  std::int32_t root;
  std::int32_t count;
  const void* input;  // null: in place, as MPI_IN_PLACE
  void* output;
};

// inout[i] = op(in[i], inout[i]) for operations that MPI does not have. MPI calls it on any thread.
using Reduce = void (*)(std::int32_t dtype, std::int32_t op, const void* in, void* inout,
                        std::int64_t count);

enum ThreadLevel : std::int32_t { kSingle, kFunneled, kSerialized, kMultiple };
constexpr std::int32_t kAnySource = -1;
constexpr std::uint32_t kAbi = 1;

struct Table {
  std::uint32_t abi;
  const char* name;  // "openmpi" or "mpich"
  // Initializes MPI unless the program has done so. `level` receives the provided thread level.
  int (*initialize)(std::int32_t wanted, std::int32_t* level, std::int32_t* was_initialized);
  int (*finalize)();
  int (*world)(std::int32_t* rank, std::int32_t* size);
  void (*version)(char* text, std::int32_t size);
  void (*describe)(int code, char* text, std::int32_t size);
  // Blocks until all `count` ranks of the world have called it with the same list and tag.
  int (*form)(const std::int32_t* ranks, std::int32_t count, std::int32_t tag, Comm* comm);
  int (*free)(Comm* comm);
  // At most 2^31 - 1 bytes; tags up to 2^24.
  int (*isend)(Comm comm, const void* data, std::uint64_t bytes, std::int32_t peer,
               std::int32_t tag, Request* request);
  int (*irecv)(Comm comm, void* data, std::uint64_t bytes, std::int32_t peer, std::int32_t tag,
               Request* request);
  int (*start)(Comm comm, const Call* call, Request* request);
  int (*test)(Request* request, std::int32_t* done, Arrival* arrival);
  int (*cancel)(Request* request);
};

// The only symbol of a plug-in. MPI calls `reduce` for float16, bfloat16, booleans, and minima of
// floats (with NaN).
inline constexpr const char* kEntry = "weft_mpi_table";
using Entry = const Table* (*)(Reduce reduce);

}  // namespace weft::net::mpi::internal
