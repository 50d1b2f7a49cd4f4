// Ranks that an MPI launcher started: point-to-point messages and native collectives over Open MPI
// or MPICH, whichever started the process.
//
// MPI is loaded at run time: the plug-in of each MPI (libweft_mpi_openmpi.so, libweft_mpi_mpich.so)
// is searched in $WEFT_PLUGIN_DIR, in lib/weft of every folder above the program, and in the paths
// of the dynamic linker. weft does not link MPI. MPI is initialized once, on its own thread, and
// finalized when the process exits, unless the program has initialized it before.
//
// With MPI_THREAD_MULTIPLE, waiting threads make progress. Otherwise, or with
// WEFT_MPI_THREADS=funneled, MPI's own thread makes all calls. Every wait has a deadline, but MPI
// cannot cancel a transfer. If one is still in progress when its call fails, weft stops calling MPI
// in this process (so that MPI writes to no buffer that was returned), and every later call throws
// kAborted.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/net/endpoint.h"
#include "weft/net/memory/direct.h"
#include "weft/schedule/schedule.h"

namespace weft::net::mpi {

// An Endpoint over MPI; name() is "mpi". A message of up to 4 KiB is sent at once; a longer one may
// wait for its receive. A peer that leaves or fails notifies the others. If one dies, the launcher
// ends the job, or the deadline ends the wait.
class MpiEndpoint : public Endpoint {
 public:
  // Runs a collective by MPI's own algorithm, with the same arguments as in Direct. args.timeout
  // limits the whole call. All ranks call in the same order, one call at a time. Each call begins
  // with an all-reduce of 16 bytes, which detects ranks that call different operations; all ranks
  // then throw kInvalidArgument with both signatures. MPI decides the order of additions. It is the
  // same in every run and on every rank for the MPIs named above.
  virtual void run(schedule::Collective collective, const DirectArgs& args) = 0;
  // "openmpi" or "mpich".
  virtual const char* implementation() const = 0;
};

struct MpiOptions {
  // Ranks of the launcher's world, in the group's order; the same on all members. Empty: all.
  std::vector<int> ranks;
  std::uint32_t epoch = 0;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // for the group to form
  // Larger collectives use several MPI calls, or messages.
  std::size_t native_bytes = std::size_t{1} << 30;
};

// Collective over options.ranks, which include this process. Throws kUnavailable (no MPI started
// this process, no plug-in for that MPI, thread level too low), kInvalidArgument (ranks), kTimeout.
std::unique_ptr<MpiEndpoint> connect_mpi(const MpiOptions& options = {});

// This process's rank in the launcher's world. Starts MPI; throws kUnavailable like connect_mpi().
int world_rank();

// Gathers the texts of all ranks, in rank order, on every rank.
std::vector<std::string> exchange(MpiEndpoint& endpoint, const std::string& mine,
                                  Deadline deadline);

// The MPI whose launcher started this process ("openmpi", "mpich"), detected by its environment
// variables. WEFT_MPI overrides it. Throws kBadConfig if WEFT_MPI is neither of them.
using Variables = std::function<const char*(const char* name)>;
std::optional<std::string> started_by(const Variables& variables);

// The plug-in files found, by the name of their MPI. Does not load them, and does not find files in
// the paths of the dynamic linker.
std::vector<std::pair<std::string, std::string>> plugins();

}  // namespace weft::net::mpi
