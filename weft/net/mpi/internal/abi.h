// What weft asks of an MPI, as plain functions: one shared library for each MPI (plugin/plugin.cc)
// gives this table, and the same weft uses whichever it finds at run time. Open MPI's and MPICH's
// own types do not pass through: both fit 8 bytes.
//
// Functions return 0, or an MPI error code that describe() puts into words. Requests are freed when
// they are complete.
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

// inout[i] = op(in[i], inout[i]) for what MPI itself has no operation for. Called by MPI on any
// thread.
using Reduce = void (*)(std::int32_t dtype, std::int32_t op, const void* in, void* inout,
                        std::int64_t count);

enum ThreadLevel : std::int32_t { kSingle, kFunneled, kSerialized, kMultiple };
constexpr std::int32_t kAnySource = -1;
constexpr std::uint32_t kAbi = 1;

struct Table {
  std::uint32_t abi;
  const char* name;  // "openmpi" or "mpich"
  // Initializes MPI unless the program has; level is what it gives.
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

// The one symbol of a plug-in. `reduce` is what it calls for float16, bfloat16, truth values, and
// minima of floats (where NaN counts).
inline constexpr const char* kEntry = "weft_mpi_table";
using Entry = const Table* (*)(Reduce reduce);

}  // namespace weft::net::mpi::internal
