// A backend that outlives its groups: each call goes to the group of the moment.
//
// reconfigure() in its order:
//   1. Under the lock: reserve the uuid, and take the group away. New calls now throw.
//   2. Without the lock: stop the old group, and let go of it. A call that runs in it holds a
//      reference (group()), ends with an error, and destroys the group if it is the last.
//   3. Without the lock: form the new group, which may take long.
//   4. Under the lock: the new group becomes the one of the moment.
//
// If step 3 throws, there is no group, and the next reconfigure() needs another uuid: ranks may
// have left keys under this one. Of the calls to a group, only setTimeout() and abort() are made
// with the lock held.
#include "weft/comm/internal/reconfigurable.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <variant>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/comm/internal/work.h"
#include "weft/net/memory/host.h"

namespace weft::comm::internal {
namespace {

// Unique among all processes of all hosts.
std::string new_handle() {
  return "weft/" + net::host_id() + "/" + std::to_string(::getpid()) + "/" +
         std::to_string(random_number());
}

}  // namespace

ReconfigurableBackend::ReconfigurableBackend(StorePtr store, int rank, int size,
                                             BackendOptions options)
    : Backend(rank, size),
      store_(std::move(store)),
      handle_(new_handle()),
      options_(std::move(options)),
      shown_(c10::make_intrusive<Options>("weft", options_.timeout)) {
  shown_->enable_reconfigure = true;
}

ReconfigurableBackend::Place ReconfigurableBackend::place_among(
    const c10d::ReconfigureOptions& options) const {
  std::vector<std::string> handles;
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&options.handles)) {
    handles = *ordered;
  } else {
    const auto& any = std::get<std::unordered_set<std::string>>(options.handles);
    handles.assign(any.begin(), any.end());
    // A set has no order of its own; all members must number themselves alike.
    std::sort(handles.begin(), handles.end());
  }
  const auto mine = std::find(handles.begin(), handles.end(), handle_);
  WEFT_REQUIRE(std::count(handles.begin(), handles.end(), handle_) == 1,
               "reconfigure: this process's handle must be once among the handles; collect those "
               "of get_reconfigure_handle() on all members");
  return {static_cast<int>(mine - handles.begin()), static_cast<int>(handles.size()),
          handles.front()};
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reconfigure(
    const c10d::ReconfigureOptions& options) {
  const auto [rank, size, leader] = place_among(options);
  BackendOptions how;
  BackendPtr before;
  {
    const std::lock_guard lock(mutex_);
    WEFT_REQUIRE(used_.insert(options.uuid).second,
                 "reconfigure: the uuid " + std::to_string(options.uuid) +
                     " is already used; give each group of a backend a fresh one");
    before = std::move(group_);
    how = options_;
    how.timeout = shown_->timeout;
  }
  if (auto* const weft = dynamic_cast<WeftBackend*>(before.get())) weft->stop();
  before.reset();
  // The handshake compares epochs, so it refuses a rank of another group.
  how.epoch = static_cast<std::uint32_t>(options.uuid);
  if (options.timeout) how.connect_timeout = *options.timeout;
  // A job that starts again on the same store may use the same uuids, with other processes.
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "reconfigure/" + std::to_string(options.uuid) + "/" + leader, store_);
  auto made = make_backend(std::move(store), rank, size, how);
  const std::lock_guard lock(mutex_);
  group_ = std::move(made);
  rank_ = rank;
  size_ = size;
  auto work = c10::make_intrusive<WeftWork>(
      rank, Shown{c10d::OpType::UNKNOWN, "weft:reconfigure", {}, {}}, 0);
  work->end(nullptr, -1);
  return work;
}

ReconfigurableBackend::BackendPtr ReconfigurableBackend::group() const {
  const std::lock_guard lock(mutex_);
  WEFT_REQUIRE(group_ != nullptr,
               "the group is not formed: call reconfigure() with the handles of all members");
  return group_;
}

c10::intrusive_ptr<c10d::Backend::Options> ReconfigurableBackend::getBackendOptions() {
  return shown_;
}

void ReconfigurableBackend::setTimeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  shown_->timeout = timeout;
  if (group_) group_->setTimeout(timeout);
}

void ReconfigurableBackend::abort() {
  const std::lock_guard lock(mutex_);
  if (group_) group_->abort();
}

ReconfigurableBackend::BackendPtr ReconfigurableBackend::split(
    const StorePtr& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  return group()->split(store, ranks, options);
}

ReconfigurableBackend::BackendPtr ReconfigurableBackend::merge(
    const StorePtr& store, const c10::intrusive_ptr<Options>& options, const int& rank,
    const int& size) {
  return group()->merge(store, options, rank, size);
}

using Rb = ReconfigurableBackend;

Rb::WorkPtr Rb::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return group()->broadcast(tensors, options);
}
Rb::WorkPtr Rb::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return group()->allreduce(tensors, options);
}
Rb::WorkPtr Rb::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return group()->allreduce_sparse(tensors, options);
}
Rb::WorkPtr Rb::allreduce_coalesced(Tensors& tensors,
                                    const c10d::AllreduceCoalescedOptions& options) {
  return group()->allreduce_coalesced(tensors, options);
}
Rb::WorkPtr Rb::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return group()->reduce(tensors, options);
}
Rb::WorkPtr Rb::allgather(TensorLists& outputs, Tensors& inputs,
                          const c10d::AllgatherOptions& options) {
  return group()->allgather(outputs, inputs, options);
}
Rb::WorkPtr Rb::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  return group()->allgather_coalesced(outputs, inputs, options);
}
Rb::WorkPtr Rb::_allgather_base(at::Tensor& output, at::Tensor& input,
                                const c10d::AllgatherOptions& options) {
  return group()->_allgather_base(output, input, options);
}
Rb::WorkPtr Rb::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  return group()->allgather_into_tensor_coalesced(outputs, inputs, options);
}
Rb::WorkPtr Rb::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return group()->gather(outputs, inputs, options);
}
Rb::WorkPtr Rb::scatter(Tensors& outputs, TensorLists& inputs,
                        const c10d::ScatterOptions& options) {
  return group()->scatter(outputs, inputs, options);
}
Rb::WorkPtr Rb::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                               const c10d::ReduceScatterOptions& options) {
  return group()->reduce_scatter(outputs, inputs, options);
}
Rb::WorkPtr Rb::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::ReduceScatterOptions& options) {
  return group()->_reduce_scatter_base(output, input, options);
}
Rb::WorkPtr Rb::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  return group()->reduce_scatter_tensor_coalesced(outputs, inputs, options);
}
Rb::WorkPtr Rb::alltoall_base(at::Tensor& output, at::Tensor& input,
                              std::vector<int64_t>& output_splits,
                              std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options) {
  return group()->alltoall_base(output, input, output_splits, input_splits, options);
}
Rb::WorkPtr Rb::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return group()->alltoall(outputs, inputs, options);
}
Rb::WorkPtr Rb::send(Tensors& tensors, int peer, int tag) {
  return group()->send(tensors, peer, tag);
}
Rb::WorkPtr Rb::recv(Tensors& tensors, int peer, int tag) {
  return group()->recv(tensors, peer, tag);
}
Rb::WorkPtr Rb::recvAnysource(Tensors& tensors, int tag) {
  return group()->recvAnysource(tensors, tag);
}
Rb::WorkPtr Rb::barrier(const c10d::BarrierOptions& options) { return group()->barrier(options); }
void Rb::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group()->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace weft::comm::internal

#endif
