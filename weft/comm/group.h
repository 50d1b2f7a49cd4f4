// Group: a set of ranks and their collectives. It is cheap to copy. There is no global world.
//
// How to call it
// - Calls block unless their name ends with _async.
// - All ranks of a group call its collectives in the same order, with the same types and numbers of
//   elements. Otherwise all ranks get kInvalidArgument, with both signatures in the message.
// - One thread at a time calls collectives. Any thread may call send and recv.
// - Tensors are dense. A tensor that is not contiguous or is on a CUDA device goes through a copy.
//   Where a result is written, elements must not share memory (expand()): kInvalidArgument.
//
// Failures
// - A lost rank ends every pending call of the other ranks with kPeerLost.
// - A passed deadline ends pending calls with kTimeout.
// - Later calls throw the same code or kAborted.
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
class PreparedAllReduce;

namespace internal {
struct RegroupData;
}

// Options of Group::regroup(): which ranks form the next group, and how long to wait for them.
struct RegroupOptions {
  // Number of ranks (survivors plus newcomers) that ends the wait early, once every member that is
  // not known to be dead has come. Further newcomers are left out. 0: no limit, and no wait for
  // newcomers.
  int size = 0;
  // True: if `size` ranks come, each survivor keeps its rank, and newcomers take the ranks of the
  // lost ones. False: survivors keep their order and newcomers follow them.
  bool keep_ranks = false;
  // Members from this rank on leave the job and are not awaited. -1: none leaves.
  int leaving_from = -1;
  // Ranks by the launcher of expected newcomers that replace no member. The wait for one ends when
  // the launcher reports it as lost.
  std::vector<int> newcomers = {};
  // Minimum number of ranks; fewer are an error. Set it above half of the ranks to require a
  // majority.
  int at_least = 1;
  // Time to wait for members that are not known to be dead. All members then get the same time to
  // connect. Set it longer than a training step: a busy rank learns of the failure at its next
  // operation.
  std::chrono::milliseconds wait = std::chrono::seconds(10);
  // Limit of the whole call. A member that is lost while the group forms starts another attempt.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

// Bytes that a rank has moved to and from other ranks.
struct Traffic {
  // Payload of messages to other ranks (TCP, MPI, rings in shared memory).
  std::uint64_t sent_bytes = 0;
  // Memory of other ranks of this host that collectives have read or written in place.
  std::uint64_t shared_bytes = 0;
  // False: MPI's own collectives or another backend (NCCL) moved data too, which is not counted.
  bool is_complete = true;
};

class Group {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  // Wraps any c10d backend: weft's own, NCCL, a fake one.
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name);
  // As above, for a group that regroup() can form again. Used by the functions of init.h.
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
        std::shared_ptr<const internal::RegroupData> regroup_data);

  int rank() const;
  int size() const;
  const std::string& name() const;

  // Reduces the tensors of all ranks with `op`, in place. All get the same bits. kAvg: the mean.
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  Work all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  // Prepares an all_reduce of this tensor for many calls. Does not communicate. `timeout` limits
  // each wait for a peer (0: the group's). Refuses what all_reduce refuses, and sparse tensors.
  PreparedAllReduce prepare_all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                                       std::chrono::milliseconds timeout = {}) const;
  // Copies root's tensor to every rank. In place.
  void broadcast(at::Tensor& tensor, int root = 0) const;
  Work broadcast_async(at::Tensor& tensor, int root = 0) const;
  // Concatenates every rank's input [n, …] into output [size() * n, …], in rank order. All of
  // output is written.
  void all_gather(at::Tensor& output, const at::Tensor& input) const;
  Work all_gather_async(at::Tensor& output, const at::Tensor& input) const;
  // Reduces input [size() * n, …] over all ranks. output [n, …] is this rank's block of the result.
  void reduce_scatter(at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::kSum) const;
  Work reduce_scatter_async(at::Tensor& output, const at::Tensor& input,
                            ReduceOp op = ReduceOp::kSum) const;
  // input and output: [size() * n, …]. Block r of rank q's output is block q of rank r's input.
  void all_to_all(at::Tensor& output, const at::Tensor& input) const;
  // Leaves the reduction in the root's tensor. The other ranks' tensors do not change.
  void reduce(at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::kSum) const;
  // Returns every rank's tensor on the root, in rank order, and an empty vector on other ranks.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root = 0) const;
  // Copies the root's blocks[r] to rank r's tensor. The root passes size() tensors of one shape;
  // other ranks pass none.
  void scatter(at::Tensor& tensor, const std::vector<at::Tensor>& blocks, int root = 0) const;
  // Point-to-point messages. Messages between two ranks match by tag, in order. Both tensors must
  // have the same number of bytes.
  void send(const at::Tensor& tensor, int peer, int tag = 0) const;
  void recv(at::Tensor& tensor, int peer, int tag = 0) const;
  void barrier() const;
  // Waits for `work`, a message that this group's backend started. Throws the error that the
  // message ended with. Use it in place of work->wait(): where ranks are threads, that does not
  // notice that a rank aborted the group. `operation` is the name in the error message. Null:
  // returns at once.
  void wait(const Work& work, const char* operation) const;

  c10d::Backend& backend() const;
  // Access to the other ranks' memory where all ranks share the memory of one host. Null otherwise.
  net::Host* host() const;
  // The ranks of this group that share this rank's memory, this rank among them, by their rank in
  // `host`. No ranks where host is null.
  struct HostRanks {
    net::Host* host = nullptr;
    std::vector<int> ranks;
  };
  HostRanks host_ranks() const;
  // The two levels of a group whose ranks are on several hosts. Null where all ranks are on one
  // host, where each rank has a host of its own, and for a backend that is not weft's.
  const HostSplit* split() const;
  // True if all_reduce and reduce_scatter add along the balanced binary tree over the ranks,
  // ((0+1)+(2+3))+…. The bits are then those of ranks on one host. True within one host and for two
  // ranks; otherwise only where BackendOptions::ordered_sums asked for it.
  bool has_ordered_sums() const;
  // True if tensors on devices travel by a backend of their own (Transport::kNccl). Every rank then
  // needs a device, and all ranks pass tensors on devices or none does.
  bool has_device_backend() const;
  // Traffic of this rank since the groups were made: in this group, in the group that it was made
  // from, and in all groups made from them. Failed calls may count in part. Any thread may call it.
  Traffic traffic() const;
  // Adds what this rank has moved outside of groups, such as to a server. Any thread may call it.
  void count(const Traffic& moved) const;
  // Longest time that a call waits for a peer.
  std::chrono::nanoseconds timeout() const;
  // Makes a group of ranks[0], ranks[1] … of this group, numbered in that order, with its own order
  // of calls. Collective over these ranks alone; all of them pass the same list. A call with
  // another list or name at the same time makes another group. Throws kInvalidArgument if this rank
  // is not in the list or a rank is in it twice. Throws kUnavailable if the backend cannot be
  // split. Also throws as make_backend() does.
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // As subgroup() of all ranks: a group with its own order of calls (MPI_Comm_dup). Collective.
  Group duplicate(const std::string& name) const;
  // As duplicate(). abort(), stop() and regroup() of this group also end the new one. Returns this
  // group if it has one rank, or if its backend is not weft's or cannot be split.
  Group attach(const std::string& name) const;
  // Ends all pending and later calls of all ranks with kAborted, at other ranks with this rank and
  // `why` in the message. Returns at once; others notice within a second. Any thread may call it.
  void abort(const Error& why) const;
  void abort() const;
  // Before regroup(): as abort(), but ranks of other hosts still end the calls that all have made.
  void stop() const;
  // Forms the group of the surviving ranks and of newcomers (init.h), under the next epoch. All
  // surviving ranks call it, with equal options. It aborts this group; do not use this group, or
  // groups made from it, afterwards. Survivors keep their order, or their ranks (keep_ranks).
  // A rank of this host may be left behind alive. Then no other thread of this process may be
  // inside a system call that writes to a tensor.
  // Throws:
  // - kAborted: the others went on without this rank; join_group() lets it in again.
  // - kTimeout: fewer than `at_least` ranks came, or no group could be formed in time.
  // - kPeerLost: the store is gone.
  // - kInvalidArgument: not of init() or form_group(), or another group of init() formed again.
  // - kBadConfig: the ranks met through MPI (docs/mpi.md). In both cases the group stays as it was.
  Group regroup(const RegroupOptions& options) const;
  Group regroup() const { return regroup(RegroupOptions{}); }
  std::uint32_t epoch() const;  // Number of this incarnation; it grows with every regroup().
  // What regroup() needs besides the backend. Whoever keeps both can make this group again.
  const std::shared_ptr<const internal::RegroupData>& regroup_data() const;
  // Former rank of each rank in the previous group, -1 for a newcomer. Empty for a first group.
  const std::vector<int>& former_ranks() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A prepared all_reduce, as by MPI_Allreduce_init. Other ranks may call all_reduce instead. It
// keeps its tensor, also if the caller's variable gets another one. Copies are the same call. After
// regroup(), prepare it again on the new group.
class PreparedAllReduce {
 public:
  // Reduces the tensor, wherever its memory is now. Throws as all_reduce; kInvalidArgument also if
  // the shape, strides, type or device have changed, or between start() and wait().
  void run();
  // As all_reduce_async. For a few KiB or less, run() is faster than start() and wait().
  void start();
  void wait();
  bool is_done() const;  // true if wait() would not block

 private:
  friend class Group;
  struct Call;
  explicit PreparedAllReduce(std::shared_ptr<Call> call);
  std::shared_ptr<Call> call_;
};

// The two levels of a group over several hosts: groups within a host, and groups across hosts.
//
//     host 0      host 1
//   ┌ rank 0 ──── rank 2 ┐      local:  {0, 1, 3} and {2, 4}
//   │ rank 1 ──── rank 4 │      across: {0, 2} and {1, 4}, none for rank 3
//   └ rank 3             ┘      carriers: 2
//
// Both are groups with their own order of calls. They can be used beside each other and beside the
// whole group. Errors name ranks of the whole group. A failure of one of the three groups is a
// failure of all three.
struct HostSplit {
  // Ranks of this host, in the whole group's order; they share memory.
  Group local;
  // Ranks with this rank's place in `local`, one of each host, ordered by host. None where the
  // place is not below `carriers`.
  std::optional<Group> across;
  int carriers = 1;                     // Number of ranks on the smallest host.
  int host = 0;                         // Index of this rank's host in `hosts`.
  std::vector<std::vector<int>> hosts;  // Ranks of each host, ascending.
};

}  // namespace weft::comm

namespace weft {
using comm::Group;
using comm::PreparedAllReduce;
}  // namespace weft
