// c10d::Backend over an Engine. backend.h describes it; group.h defines the calls.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/deadline.h"
#include "weft/comm/internal/calls.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/group_backend.h"
#include "weft/comm/internal/monitored_barrier.h"
#include "weft/comm/internal/named_receives.h"
#include "weft/comm/internal/related_groups.h"
#include "weft/comm/internal/tensor_collectives.h"

namespace weft::comm::internal {

class WeftBackend final : public c10d::Backend, public GroupBackend {
 public:
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // A subgroup to be made: its ranks; `ranks[me]` is this rank.
  struct Part {
    StorePtr store;  // its own store; null if the parent group has none
    std::vector<int> ranks;
    int me;
    std::chrono::milliseconds timeout;
    bool is_new = false;  // a group with ranks of its own, as by merge()
  };
  // Rendezvous of the ranks beside the engine: for monitored barriers and subgroups.
  struct Origin {
    StorePtr store;  // null for ranks that met through MPI
    std::function<BackendPtr(const Part& part)> make;
    std::shared_ptr<RelatedGroups> related;  // null: there are no subgroups
    std::vector<int> job_ranks;              // as in BackendOptions
    bool merges = false;                     // whether `make` makes new groups
  };

  WeftBackend(std::unique_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout,
              Origin origin);
  // Without subgroups.
  WeftBackend(std::unique_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout)
      : WeftBackend(std::move(engine), rank, size, timeout, Origin{}) {}
  // Waits for the posted collectives. Messages that no peer has matched are given up. If a
  // related group has had a kCorrupt or kInternal error, the peers of this group get that error,
  // since this rank leaves because of it. They get a timeout only if this group is aborted too.
  ~WeftBackend() override;

  // From now on, `devices` runs the operations on tensors that are not in host memory.
  void use_for_devices(BackendPtr devices) { devices_ = std::move(devices); }
  bool has_device_backend() const override { return static_cast<bool>(devices_); }

  const std::string getBackendName() const override { return "weft"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  // A program may also change it in the options.
  std::chrono::milliseconds timeout() const override {
    return bounded_timeout(std::atomic_ref(options_->timeout).load(std::memory_order_relaxed));
  }
  net::Host* host() override { return engine_->host(); }
  const HostSplit* split() override { return engine_->split(); }
  std::string describe() const { return engine_->describe(); }
  const std::vector<int>& job_ranks() const { return origin_.job_ranks; }
  Traffic traffic() const override;
  // No effect without related groups.
  void count(const Traffic& moved) const override {
    if (member_) member_->count(moved);
  }
  // NCCL sums tensors of devices in an order of its own.
  bool has_ordered_sums() const override {
    return engine_->has_ordered_sums() && (!devices_ || size_ <= 2);
  }
  // The name of the group in the positions of its ranks. Call it before the first operation.
  void name_group(const std::string& name) override;
  // Ends the calls of all ranks of the group. See Group::abort() and Group::stop().
  void abort_with(const Error& why) noexcept override;
  void stop() noexcept override;
  void abort() override { abort_with(Error(Errc::kAborted, "the group was aborted by its owner")); }
  StorePtr store() const override { return origin_.store; }
  bool supportsSplitting() const override { return origin_.make != nullptr; }
  // Returns null on ranks that are not in `ranks`.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE  // from torch 2.14 on
  // Makes the group of the `size` ranks that call it over `store`, such as those of two groups.
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options,
                   const int& rank, const int& size) override;
#endif

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  // Also supports sparse COO tensors (sum only).
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Rank 0 reports the ranks that do not arrive (the first, or all of them). Uses the store and
  // leaves the group usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Fast path of Group's synchronous calls: see Calls.
  bool run_now(schedule::Collective collective, const net::DirectArgs& args) override {
    return calls_->run_now(collective, args);
  }
  bool send_now(std::span<std::byte> bytes, int peer, int tag) override {
    return calls_->send_now(bytes, peer, tag, timeout());
  }
  bool recv_now(std::span<std::byte> bytes, int peer, int tag) override {
    return calls_->recv_now(bytes, peer, tag, timeout());
  }

  void setSequenceNumberForGroup() override {}
  // Number of operations that this rank has called, messages included, as in Gloo.
  uint64_t getSequenceNumberForGroup() override { return calls_->number(); }

 private:
  void abort_devices() noexcept;
  // What torch notes of a group that split() or merge() has made.
  static void note(c10d::Backend& made, const c10::intrusive_ptr<Options>& options);
  // In the monitored barrier. Does nothing if the group has not failed and no rank has died.
  void throw_loss();
  // The backend for this tensor, if another one than this runs its operations. Null otherwise.
  c10d::Backend* device_backend(const at::Tensor& tensor) const {
    return devices_ && tensor.defined() && !tensor.is_cpu() ? devices_.get() : nullptr;
  }
  // For a list, whose tensors are all in the same place.
  c10d::Backend* device_backend(const Tensors& tensors) const {
    return tensors.empty() ? nullptr : device_backend(tensors[0]);
  }
  // How to run a call: the common part of all c10d option types.
  struct How {
    std::chrono::milliseconds timeout;
    bool async;
  };
  template <class CallOptions>
  How how(const CallOptions& options) const {
    return {options.timeout.count() > 0 ? bounded_timeout(options.timeout) : timeout(),
            options.asyncOp};
  }
  WorkPtr collective(const Shown& shown, const How& how, std::function<void()> body) {
    return calls_->collective(shown, how.async, std::move(body));
  }
  WorkPtr allgather_lists(Shown shown, const TensorLists& outputs, const Tensors& inputs,
                          const How& how);

  std::unique_ptr<Engine> engine_;
  BackendPtr devices_;  // null: tensors of devices travel through host memory
  const c10::intrusive_ptr<Options> options_;  // shared with torch, which may write to it
  const Origin origin_;
  std::unique_ptr<RelatedGroups::Member> member_;  // null without related groups
  Causes causes_;
  MonitoredBarrier monitored_;
  NamedReceives named_;
  std::unique_ptr<Calls> calls_;  // last: ends before what it uses
};

}  // namespace weft::comm::internal
