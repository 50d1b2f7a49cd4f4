// c10d's interface for groups that change their members (torch 2.14 and newer): a backend that
// stays the same object while its group is formed again.
//
//   init_process_group("weft", enable_reconfigure=True)    no group yet
//   handle = get_reconfigure_handle()                      the program brings all handles together
//   reconfigure(uuid, handles)                             on all members: forms their group
//
// The members meet in the store under the uuid. Each call makes a new WeftBackend; the one before
// is aborted, so a failure of the old group does not matter.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "weft/comm/backend.h"

namespace weft::comm::internal {

class ReconfigurableBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  ReconfigurableBackend(StorePtr store, int rank, int size, BackendOptions options);

  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  // Returns when the group is formed, with a Work that has ended. Handles in a vector give the
  // ranks; those of a set are sorted. Throws kInvalidArgument for a uuid that was used before and
  // for handles without this process's; and as make_backend(). The backend then has no group.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;

  const std::string getBackendName() const override { return "weft"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  // The next reconfigure() follows an abort() as any other end of the group.
  void abort() override;
  // An abort by the owner is no error.
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  bool supportsSplitting() const override { return true; }
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options,
                   const int& rank, const int& size) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group()->getSequenceNumberForGroup(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
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
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  // The backend of the present group. Throws kInvalidArgument without one.
  BackendPtr group() const;
  struct Place {
    int rank, size;
    std::string leader;  // the handle of rank 0
  };
  Place place_among(const c10d::ReconfigureOptions& options) const;

  const StorePtr store_;
  const std::string handle_;
  mutable std::mutex mutex_;
  BackendOptions options_;                   // guarded by mutex_
  const c10::intrusive_ptr<Options> shown_;  // shared with torch, which may write to it
  BackendPtr group_;                         // guarded by mutex_
  std::set<std::int64_t> used_;              // guarded by mutex_: the uuids so far
};

}  // namespace weft::comm::internal

#endif
