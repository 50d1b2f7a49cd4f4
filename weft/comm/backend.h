// The `weft` backend of c10d: what torch.distributed and Group speak to.
//
// Ranks of one host read each other's memory in place (net/direct.h); others speak TCP (net/tcp.h) by the schedules of weft/schedule, or
// MPI (net/mpi/mpi.h).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace weft::net {
class Host;
class Endpoint;
}  // namespace weft::net

namespace weft::comm {

// How ranks reach each other.
enum class Transport {
  kAuto,  // shared memory within each host whose ranks can map it, TCP between hosts. In init(): MPI where an mpirun brought the ranks
          // together
  kShm,   // shared memory, or an error
  kTcp,
  kMpi,   // the MPI's own collectives, among ranks that one mpirun started (docs/mpi.md)
  kNccl,  // c10d's own NCCL backend, for CUDA tensors alone. By init() and form_group() only
};
// "auto", "shm", "tcp", "mpi", "nccl".
const char* to_string(Transport transport);
// Parses what to_string() gives. Throws Error(kBadConfig) naming them.
Transport parse_transport(const std::string& name);

struct BackendOptions {
  Transport transport = Transport::kAuto;
  // Over messages: a name of schedule::Algorithm ("ring") is taken for every collective that it can do; "auto" picks by measured costs
  // (weft bench calibrate); "": what WEFT_ALGORITHM says, else auto. Ranks that read each other's memory do not look at it.
  std::string algorithm;
  // Sums of all_reduce and reduce_scatter are added along the balanced binary tree over the ranks wherever these are, as ranks that read
  // each other's memory do: the same bits over every transport (float32, float64; shorter floats are rounded where their ranks meet).
  // Between hosts slower: such sums take Algorithm::kSharded, and more bytes where a host's ranks are not 2^k that follow each other.
  bool ordered_sums = false;
  // What TCP listens on and tells its peers: an address, a network of which this host has one (10.0.0.0/8) or an interface's name; empty:
  // 127.0.0.1 on one host, else the address that leads to the store's host.
  std::string interface;
  std::string store_host = "127.0.0.1";
  std::string secret;  // 32 bytes; empty: rank 0 makes one and the store hands it out (keeps strangers out, not readers of the store)
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of each wait for a peer
  std::chrono::milliseconds connect_timeout{0};                 // for the group to form; 0: as `timeout`
  std::uint32_t epoch = 0;
  std::chrono::milliseconds to_connect() const { return connect_timeout.count() > 0 ? connect_timeout : timeout; }
};

// Collective over the `size` ranks that share `store`. Throws kBadConfig (unknown transport or algorithm, ranks that name different
// algorithms), kUnavailable (shm or mpi asked for and not to be had), kTimeout, kPeerLost.
c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                               const BackendOptions& options = {});

// A backend over a host and an endpoint that exist already (threads of one process).
c10::intrusive_ptr<c10d::Backend> make_backend(std::unique_ptr<net::Host> host, std::unique_ptr<net::Endpoint> endpoint,
                                               std::chrono::milliseconds timeout);

// The host that a weft backend's ranks share; null for another backend or transport.
net::Host* host_of(c10d::Backend& backend);

}  // namespace weft::comm
