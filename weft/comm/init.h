// weft::init() joins the job that started this process. Its groups outlive their ranks:
//
//   epoch 0   ranks 0 1 2 3          rank 1 is killed: the others' operations throw kPeerLost
//                 ╲ │ │
//   epoch 1   ranks 0 1 2            group = group.regroup(): survivors in their order, under a new epoch
//                   │ │ │  newcomer  join_group(); the others: group = group.regroup({.size = 4})
//   epoch 2   ranks 0 1 2 3          newcomers come last, so rank 0 always holds what the group had: broadcast(state, 0)
//
// All goes through the store that the ranks met in, which must outlive them: let the launcher host it (weft run, torchrun), or rank 0's end
// is the end of all. Each list of members is put there once and for all, so that survivors never split in two groups. A rank that is
// stopped, or too slow, is left out and told so when it tries to regroup; whatever it still writes reaches nobody: connections are new and
// bound to the epoch, and where it shared its host's memory the survivors move theirs first (net::Heap::renew()).
#pragma once

#include <chrono>
#include <string>

#include "weft/comm/backend.h"
#include "weft/comm/environment.h"
#include "weft/comm/group.h"

namespace weft::comm {

struct InitOptions {
  IdentityOptions identity;                // wins over the environment
  Transport transport = Transport::kAuto;  // WEFT_TRANSPORT in the environment where this is kAuto
  std::string interface;                   // as BackendOptions; WEFT_INTERFACE in the environment where this is empty
  bool ordered_sums = false;               // as BackendOptions
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  bool shared_allocator = true;  // tensors come from memory that the host's ranks can read
  // True: the job runs already, and this process joins when its ranks regroup() (join_group() below). `rank` says nothing then.
  bool newcomer = false;
  bool set_threads = true;  // processors / ranks of this host intra-op threads, where OMP_NUM_THREADS does not say
};

// The group of all ranks, found from the environment (environment.h): weft run, torchrun, mpirun, srun, Kubernetes, or alone. Collective.
// Throws kBadConfig where sources disagree, kTimeout where ranks do not come, naming them.
Group init(const InitOptions& options = {});

// Like init(), for a known identity.
Group init(const Identity& identity, const InitOptions& options);

// The first group of the `size` ranks that share `store`, under options.epoch. Collective. Throws as make_backend() does.
Group form_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const BackendOptions& options = {});

// Waits for a group that form_group() made over `store` with the same options to form itself again, and becomes a rank of it. Its ranks
// call regroup() to let somebody in; this does not make them. Throws kTimeout when none has within `wait`.
Group join_group(c10::intrusive_ptr<c10d::Store> store, const BackendOptions& options = {},
                 std::chrono::milliseconds wait = std::chrono::minutes(5));

// The key in the launcher's store under which it leaves the number of a rank that has ended, so that ranks that still wait for it to join
// throw kPeerLost at once.
std::string lost_rank_key(const std::string& run_id, int restart_count);

}  // namespace weft::comm

namespace weft {
using comm::init;
}  // namespace weft
