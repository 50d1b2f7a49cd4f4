// weft::init() joins this process to the job that started it and returns the group of all ranks.
//
// A group survives the loss of ranks:
//
//   epoch 0   ranks 0 1 2 3          rank 1 is killed: the others' operations throw kPeerLost
//                 ╲ │ │
//   epoch 1   ranks 0 1 2            group = group.regroup(): survivors keep their order
//                   │ │ │  newcomer  join_group(); the others: group = group.regroup({.size = 4})
//   epoch 2   ranks 0 1 2 3          newcomers come last, so rank 0 has the group's state:
//                                    broadcast(state, 0)
//
// All of this goes through the store in which the ranks met, so the store must outlive the ranks.
// Let the launcher host it (weft run, torchrun). If rank 0 hosts it, the end of rank 0 ends the
// job. WEFT_STORE in the environment names the socket of a replicated store (weft/store), which
// survives the loss of its processes and of nodes.
// The store fixes each list of members once, so survivors never split into two groups.
// A rank that is stopped or too slow is left out, and learns it when it tries to regroup. Nothing
// that it still writes reaches the others: connections are new and bound to the epoch. Survivors
// that shared a host's memory with it first move their own memory (net::Heap::renew()).
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "weft/comm/backend.h"
#include "weft/comm/environment.h"
#include "weft/comm/group.h"

namespace weft::comm {

struct InitOptions {
  IdentityOptions identity;  // Identity given by the program; it wins over the environment.
  // Transport between ranks. kAuto: WEFT_TRANSPORT in the environment, where it is set.
  Transport transport = Transport::kAuto;
  // Network interface, as BackendOptions::interface. Empty: WEFT_INTERFACE in the environment,
  // where it is set.
  std::string interface;
  // Fixed order of sums, as BackendOptions::ordered_sums.
  bool ordered_sums = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Allocate tensors in memory that the ranks of this host can read. A child of fork() gets a copy
  // of it, which takes about 0.3 s for each GiB.
  bool shared_allocator = true;
  // True: the job runs already, and this process joins when its ranks call regroup() (join_group()
  // below). `rank` is then the rank that it asks for. Also true if WEFT_NEWCOMER is set: the
  // launcher started this process in place of a lost rank.
  bool newcomer = false;
  // Texts that must be equal on all ranks, as BackendOptions::alike: such as the configuration.
  std::map<std::string, std::string> alike;
  // Set the number of intra-op threads to processors / ranks of this host, unless OMP_NUM_THREADS
  // is set.
  bool set_threads = true;
};

// Returns the group of all ranks. It finds them from the environment (environment.h): weft run,
// torchrun, mpirun, srun, Kubernetes, or a process alone. Collective. In a warm spare (weft run
// --spares) it first waits until the launcher says which rank to become (weft/rank_link/spare.h).
// Throws kBadConfig if sources disagree, and kTimeout, naming the ranks, if ranks do not come.
// Throws kBadConfig with the difference on a rank whose version of weft or libtorch, secret or
// `alike` is not that of rank 0, or of the running job. If a rank cannot join, as without a port or
// memory, it throws why, and the others throw kAborted with its reason. All ranks may then call it
// again.
Group init(const InitOptions& options = {});

// Like init() above, for an identity that is known.
Group init(const Identity& identity, const InitOptions& options);

// Makes the first group of the `size` ranks that share `store`, under options.epoch. Collective.
// Throws as make_backend() does, and kBadConfig as init().
Group form_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 const BackendOptions& options = {});

// The same for a backend that exists already, such as one that torch.distributed has made: its
// ranks meet over `store` again when they call regroup(). Collective. Throws kBadConfig as init().
Group regroupable(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
                  const BackendOptions& options = {});

// Waits until a group that form_group() made over `store` with the same options forms again, and
// becomes a rank of it. The group's ranks must call regroup() to admit newcomers; this call does
// not make them. `rank`: the lost rank that it replaces, with RegroupOptions::keep_ranks; -1: any.
// Throws kTimeout if none does within `wait`, and kBadConfig as init(), before the group's ranks
// notice this process. `world`: the fixed number of ranks of the job. If new processes replace all
// of them, these form a group by themselves. 0: a new process always waits for a survivor.
Group join_group(c10::intrusive_ptr<c10d::Store> store, const BackendOptions& options = {},
                 std::chrono::milliseconds wait = std::chrono::minutes(5), int rank = -1,
                 int world = 0);

// The address on which this process listens for ranks of other hosts: BackendOptions::interface, or
// the address on the way to the store's host. "127.0.0.1" for a group that was not made by init()
// or form_group(). Throws kUnavailable if there is no way to the store's host.
std::string interface_of(const Group& group);

// Key in the launcher's store for the number of a rank that has ended. Ranks that still wait for
// that rank to join then throw kPeerLost at once.
std::string lost_rank_key(const std::string& run_id, int restart_count);
// Key for the numbers of lost ranks, each followed by a blank. Ranks that form the group again do
// not wait for these. A sign before a number says otherwise. "+": the rank was started again.
// "*": a process is started in its place. "=": that process has joined the others.
std::string gone_ranks_key(const std::string& run_id, int restart_count);

// The devices of ranks by name: "cpu"; "cuda", the CUDA device with the rank's number on its host;
// "cuda:N"; or "auto", as "cuda" where that device exists, else the CPU.
class DeviceSpec {
 public:
  // Throws kBadConfig for another name. Does not use CUDA.
  DeviceSpec(const std::string& name);                             // NOLINT: names stand for it
  DeviceSpec(const char* name) : DeviceSpec(std::string(name)) {}  // NOLINT: names stand for it

  bool is_cpu() const { return kind_ == Kind::kCpu; }
  // The name.
  std::string text() const;
  bool operator==(const DeviceSpec&) const = default;

 private:
  friend c10::Device device_of(const DeviceSpec& spec, int local_rank, int devices);
  enum class Kind { kCpu, kCuda, kAuto };

  Kind kind_ = Kind::kCpu;
  std::optional<int> number_;  // The N of "cuda:N".
};

// Device of a rank. `devices` is the number of CUDA devices of the host. Throws kBadConfig for a
// device that does not exist.
c10::Device device_of(const DeviceSpec& spec, int local_rank, int devices);
// As above, for the rank that this process is: by init(), or else by the environment. Uses CUDA,
// unless the device is the CPU; fork no rank from this process afterwards.
c10::Device device_of(const DeviceSpec& spec);

}  // namespace weft::comm

namespace weft {
using comm::device_of;
using comm::init;
}  // namespace weft
