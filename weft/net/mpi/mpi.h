// Ranks that an MPI launcher started: point-to-point messages and native collectives over Open MPI
// or MPICH, whichever started the process.
//
// MPI is loaded at run time: a plug-in for each MPI (libweft_mpi_openmpi.so, libweft_mpi_mpich.so)
// is looked for in $WEFT_PLUGIN_DIR, in lib/weft of every folder above the program, and where the
// dynamic linker looks. Nothing of MPI is linked into weft. MPI is initialized once, on a thread of
// its own, and finalised when the process exits, unless the program has initialized it before.
//
// With MPI_THREAD_MULTIPLE the thread that waits makes the progress; otherwise (or with
// WEFT_MPI_THREADS=funneled) MPI's own thread makes all calls. No wait lacks a deadline, but MPI
// cannot drop a transfer that it has begun: where one is still under way when its call fails, weft
// calls MPI no more in this process (so that it writes to no buffer given back), and every later
// call throws kAborted.
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

// The endpoint contract over MPI; name() is "mpi". A message of up to 4 KiB is sent at once, a
// longer one may wait for its receive. A peer that leaves or fails says so; one that dies is
// noticed by the launcher, which then ends the job, or by the deadline.
class MpiEndpoint : public Endpoint {
 public:
  // A whole collective by the MPI's own algorithm, with the meaning that Direct gives it;
  // args.timeout bounds the whole call. All ranks call in the same order; one call at a time. A
  // call costs a second reduction of 16 bytes, by which ranks that call different operations all
  // throw kInvalidArgument showing both. The MPI decides the order of additions: the same on every
  // run and rank for the MPIs named above.
  virtual void run(schedule::Collective collective, const DirectArgs& args) = 0;
  // "openmpi" or "mpich".
  virtual const char* implementation() const = 0;
};

struct MpiOptions {
  // Of the launcher's world, in the group's order; the same on all of them. Empty: all.
  std::vector<int> ranks;
  std::uint32_t epoch = 0;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // for the group to form
  std::size_t native_bytes = std::size_t{1}
                             << 30;  // more than this go by several calls, or by messages
};

// Collective over options.ranks, of which this process is one. Throws kUnavailable (no MPI started
// this process, no plug-in for the one that did, too few threads), kInvalidArgument (ranks),
// kTimeout.
std::unique_ptr<MpiEndpoint> connect_mpi(const MpiOptions& options = {});

// This process's rank among all that the launcher started. Starts MPI; throws kUnavailable as
// above.
int world_rank();

// Every rank's text, in rank order, on every rank.
std::vector<std::string> exchange(MpiEndpoint& endpoint, const std::string& mine,
                                  Deadline deadline);

// The MPI whose launcher started this process, by the variables that it leaves ("openmpi",
// "mpich"); WEFT_MPI names another. Throws kBadConfig where WEFT_MPI is neither.
using Variables = std::function<const char*(const char* name)>;
std::optional<std::string> started_by(const Variables& variables);

// The plug-in files that are here (none is loaded), by the name of their MPI. Those that only the
// dynamic linker would find are not seen.
std::vector<std::pair<std::string, std::string>> plugins();

}  // namespace weft::net::mpi
