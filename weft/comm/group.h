// A set of ranks and their collectives: a cheap value, copied and passed around. There is no global world.
//
// Calls are synchronous unless named _async; collectives of a group are called by all its ranks in the same order with the same shapes and
// types, else all ranks get kInvalidArgument showing both signatures. A lost rank ends every pending call of the others with kPeerLost, a
// passed deadline with kTimeout; later calls throw the same, else kAborted. Tensors are dense; those that are not contiguous, or on a CUDA
// device, go through a copy. One thread at a time calls collectives; send and recv may be called from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/base/error.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace weft::net {
class Host;
}

namespace weft::comm {

struct HostSplit;

namespace internal {
struct Lineage;
}

// With whom a group goes on.
struct RegroupOptions {
  // So many ranks, newcomers among them, end the wait early, and no more are taken; 0: any number, and no newcomer is waited for.
  int size = 0;
  int at_least = 1;  // fewer are an error; more than half of the ranks, where a majority is wanted
  // For those that have not come and are not known to be dead; and again for all members to connect. Longer than a step takes: a rank that
  // is busy learns of the failure at its next operation.
  std::chrono::milliseconds wait = std::chrono::seconds(10);
  std::chrono::milliseconds timeout = std::chrono::minutes(2);  // of the whole, where members are lost while the group forms
};

class Group {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  // A group over any c10d backend (weft's own, NCCL, a fake one).
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name);
  // One that can be formed again (init.h).
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name, std::shared_ptr<const internal::Lineage> lineage);

  int rank() const;
  int size() const;
  const std::string& name() const;

  // Every rank ends with op over all ranks' tensors, the same bits everywhere. In place. kAvg is the mean.
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  Work all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  // Every rank ends with root's tensor. In place.
  void broadcast(at::Tensor& tensor, int root = 0) const;
  Work broadcast_async(at::Tensor& tensor, int root = 0) const;
  // output: [size() * n, …] from input [n, …] of each rank, in rank order. Output is written whole.
  void all_gather(at::Tensor& output, const at::Tensor& input) const;
  Work all_gather_async(at::Tensor& output, const at::Tensor& input) const;
  // output: [n, …], this rank's block of the reduction of input [size() * n, …].
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum) const;
  Work reduce_scatter_async(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum) const;
  // output: [size() * n, …]; block r of rank q's output is block q of rank r's input.
  void all_to_all(at::Tensor& output, const at::Tensor& input) const;
  // The root ends with the reduction; other ranks' tensors are left as they were.
  void reduce(at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::kSum) const;
  // The root gets every rank's tensor, in rank order; other ranks get an empty vector.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root = 0) const;
  // Rank r's tensor becomes blocks[r] of the root, which gives size() tensors of one shape; other ranks give none.
  void scatter(at::Tensor& tensor, const std::vector<at::Tensor>& blocks, int root = 0) const;
  // Messages between two ranks match by tag, in order; shapes must agree in bytes.
  void send(const at::Tensor& tensor, int peer, int tag = 0) const;
  void recv(at::Tensor& tensor, int peer, int tag = 0) const;
  void barrier() const;
  // Until `work`, a message that this group's backend began, has ended; throws what it ended with. Its own wait() does not see that a
  // rank has aborted the group where ranks are threads; this one does. `operation` stands in the error. Null: returns at once.
  void wait(const Work& work, const char* operation) const;

  c10d::Backend& backend() const;
  // Where all ranks share one host's memory: what they read each other's with. Null otherwise.
  net::Host* host() const;
  // The two levels of a group whose ranks are on several hosts. Null where all are on one host, or each on its own, or for a backend that
  // is not weft's.
  const HostSplit* split() const;
  // Whether all_reduce and reduce_scatter add along the balanced binary tree over the ranks, ((0+1)+(2+3))+…, and so give the bits that
  // ranks of one host give: always within a host and for two ranks; else where it was asked for (BackendOptions::ordered_sums).
  bool has_ordered_sums() const;
  // How long a call waits for a peer.
  std::chrono::nanoseconds timeout() const;
  // A group of its own, with its own order of calls, of ranks[0], ranks[1] … of this one, numbered in that order. Collective over these
  // alone, which give the same list; a call of another list or name at the same time is another group. Throws kInvalidArgument where this
  // rank is not among them or one is named twice, kUnavailable where the backend cannot be split, and as make_backend() does.
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // A group of the same ranks with its own order of calls (MPI_Comm_dup). Collective. Throws as subgroup().
  Group duplicate(const std::string& name) const;

  // Ends all pending and later calls of this rank with kAborted, at once and without communicating; ranks of the same host see it. Any
  // thread.
  void abort(const Error& why) const;
  void abort() const;

  // The group of those that are left, and of newcomers (init.h), under the next epoch. This group is aborted; its ranks that can go on
  // all call this, with equal options, and no longer use it or groups made from it. Survivors keep their order, newcomers follow them.
  // Where a rank of this host is left behind alive, other threads of this process must not be inside system calls that write tensors.
  // Throws kAborted where the others have gone on without this rank (join_group() comes in again), kTimeout where fewer than
  // `at_least` came or no group could be formed in time, kPeerLost where the store is gone, kInvalidArgument for a group that was not made
  // by init() or form_group(), kBadConfig for one whose ranks met through MPI (docs/mpi.md); either stays as it was.
  Group regroup(const RegroupOptions& options) const;
  Group regroup() const { return regroup(RegroupOptions{}); }
  // Which incarnation this is; grows with every regroup().
  std::uint32_t epoch() const;
  // By rank: its rank in the group before, -1 for a newcomer. Empty for a first group.
  const std::vector<int>& former_ranks() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A group over several hosts, taken apart. For an all-reduce, as Group::all_reduce does it: cut an array in `carriers` parts; reduce part i
// in `local` to its rank i; all-reduce it in `across`, over the wire and once for the whole host; broadcast it in `local` from rank i.
//
//     host 0      host 1
//   ┌ rank 0 ──── rank 2 ┐      local:  {0, 1, 3} and {2, 4}
//   │ rank 1 ──── rank 4 │      across: {0, 2} and {1, 4}, none for rank 3
//   └ rank 3             ┘      carriers: 2
//
// Both are groups of their own with their own order of calls, so that they can be used beside each other and beside the whole. Errors name
// ranks of the whole group, and one group's failure is the failure of all three.
struct HostSplit {
  Group local;                  // the ranks of this host, in the whole group's order; they share memory
  std::optional<Group> across;  // those of each host that have my place in `local`, by host; none where my place is not below `carriers`
  int carriers = 1;             // ranks of the smallest host
  int host = 0;                 // mine, a place in `hosts`
  std::vector<std::vector<int>> hosts;  // each host's ranks, ascending
};

}  // namespace weft::comm

namespace weft {
using comm::Group;
}
