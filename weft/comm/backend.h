// The `weft` backend of c10d, which torch.distributed and Group call to communicate.
//
// Ranks of one host read each other's memory in place (net/memory/direct.h). Other ranks use TCP
// (net/tcp/tcp.h) with the schedules of weft/schedule, or MPI (net/mpi/mpi.h).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace weft::net {
class Host;
class Endpoint;
}  // namespace weft::net

namespace weft::comm {

// Transport between ranks.
enum class Transport {
  // Shared memory within each host whose ranks can map it, TCP between hosts. init() uses MPI if an
  // mpirun brought the ranks together.
  kAuto,
  kShm,  // Shared memory, or an error.
  kTcp,
  // MPI's own collectives, among ranks that one mpirun started (docs/mpi.md).
  kMpi,
  // As kAuto, and NCCL for the collectives and messages of CUDA tensors. Each rank needs a device
  // of its own. With the other transports, CUDA tensors travel through host memory.
  kNccl,
};
// "auto", "shm", "tcp", "mpi", "nccl".
const char* to_string(Transport transport);
// Parses what to_string() returns. Throws Error(kBadConfig), naming the valid names.
Transport parse_transport(const std::string& name);

struct BackendOptions {
  Transport transport = Transport::kAuto;
  // Algorithm of collectives over messages. A name of schedule::Algorithm ("ring"): used for every
  // collective that it supports. "auto": chosen by measured costs (weft bench calibrate). "":
  // WEFT_ALGORITHM, or else auto. Ranks that read each other's memory ignore it.
  std::string algorithm;
  // Add sums of all_reduce and reduce_scatter along the balanced binary tree over the ranks on
  // every transport, as ranks that read each other's memory do. Every transport then gives the same
  // bits for float32, float64 and averages of float16; other sums of shorter floats are rounded
  // where their ranks meet. Slower between hosts: such sums use Algorithm::kSharded. They also need
  // more bytes if a host's ranks are not 2^k consecutive ones.
  bool ordered_sums = false;
  // Address on which TCP listens and that it tells its peers: an address, a network in which this
  // host has one address (10.0.0.0/8), or the name of an interface. Empty: 127.0.0.1 on one host,
  // otherwise the address that leads to the store's host.
  std::string interface;
  std::string store_host = "127.0.0.1";
  // Secret of the job, 32 bytes. Empty: rank 0 makes one and the store distributes it. That keeps
  // strangers out, but not readers of the store.
  std::string secret;
  // Limit of each wait for a peer.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Time for the group to form. 0: as `timeout`. Subgroups have their own timeout for it.
  std::chrono::milliseconds connect_timeout{0};
  // Texts that must be equal on all ranks of a job, by what they describe: {"recipe", "…"}. Entries
  // end with "; ". form_group() and join_group() compare them, and the versions of weft and
  // libtorch.
  std::map<std::string, std::string> alike;
  std::uint32_t epoch = 0;
  // By rank of the group: its rank in the job, by which errors name it. Empty: the same number.
  // Subgroups fill it in.
  std::vector<int> job_ranks;
  // Returns a rank of the group that is known to have ended, for waits of the others. Empty: the
  // launcher's entry in the store tells it.
  std::function<std::optional<int>()> lost_rank = {};
  std::chrono::milliseconds to_connect() const {
    return connect_timeout.count() > 0 ? connect_timeout : timeout;
  }
};

// Makes the backend of the `size` ranks that share `store`. Collective. Throws kBadConfig for an
// unknown transport or algorithm, for ranks that name different algorithms, and for ordered sums
// with nccl. Throws kUnavailable if shm, mpi or nccl was asked for and is not available. Throws
// kTimeout, kPeerLost.
c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, const BackendOptions& options = {});

// Makes a backend over a host and an endpoint that exist already (threads of one process).
c10::intrusive_ptr<c10d::Backend> make_backend(std::unique_ptr<net::Host> host,
                                               std::unique_ptr<net::Endpoint> endpoint,
                                               std::chrono::milliseconds timeout);

// Makes a backend without a group, for c10d's reconfigure() (internal/reconfigurable.h). `rank` and
// `size` are those until then. Not collective. Throws kUnavailable if libtorch is older than 2.14.
c10::intrusive_ptr<c10d::Backend> make_reconfigurable_backend(c10::intrusive_ptr<c10d::Store> store,
                                                              int rank, int size,
                                                              const BackendOptions& options = {});

// The destructor of each backend calls `around` with its wait for the posted operations. `around`
// must call `wait`. Python's module sets one that releases the GIL meanwhile: the threads of the
// backend need it to free tensors. Null: the destructor calls `wait` itself.
using AroundWait = void (*)(const std::function<void()>& wait);
void set_around_wait(AroundWait around);

// Returns a number that the `size` ranks which share `store` agree on, and that no earlier call of
// any process over it has returned. Keys below it are new, whatever an earlier attempt of the job
// has left in the store. torchrun has no such number: it counts the restarts of each node
// separately. Collective. Throws kTimeout for a rank that does not come, and kPeerLost if the store
// is gone. All ranks may then call it again.
int agree_on_attempt(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

// The host that the ranks of a weft backend share. Null for another backend or transport.
net::Host* host_of(c10d::Backend& backend);

// By rank of a weft backend: its rank in the job, as BackendOptions::job_ranks. Empty: the same
// number, or another backend.
std::vector<int> job_ranks_of(c10d::Backend& backend);

}  // namespace weft::comm
