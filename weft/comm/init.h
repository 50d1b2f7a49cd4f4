// weft::init(): joins the job that started this process.
#pragma once

#include <chrono>
#include <string>

#include "weft/comm/environment.h"
#include "weft/comm/group.h"

namespace weft::comm {

struct InitOptions {
  IdentityOptions identity;        // wins over the environment
  std::string transport = "auto";  // as BackendOptions; WEFT_TRANSPORT in the environment where this is "auto"
  std::string interface;           // as BackendOptions; WEFT_INTERFACE in the environment where this is empty
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  bool shared_allocator = true;  // tensors come from memory that the host's ranks can read
  bool set_threads = true;       // processors / ranks of this host intra-op threads, where OMP_NUM_THREADS does not say
};

// The group of all ranks, found from the environment (environment.h): weft run, torchrun, mpirun, srun, Kubernetes, or alone. Collective.
// Throws kBadConfig where sources disagree, kTimeout where ranks do not come, naming them.
Group init(const InitOptions& options = {});

// Like init(), for a known identity.
Group init(const Identity& identity, const InitOptions& options);

// The key in the launcher's store under which it leaves the number of a rank that has ended, so that ranks that still wait for it to join
// throw kPeerLost at once.
std::string lost_rank_key(const std::string& run_id, int restart_count);

}  // namespace weft::comm

namespace weft {
using comm::init;
}  // namespace weft
