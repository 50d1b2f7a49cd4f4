// c10d::Backend over an Engine. See backend.h for what it is, group.h for what calls mean.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/lanes.h"

namespace weft::comm::internal {

class WeftBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WeftBackend(std::unique_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout);
  ~WeftBackend() override;

  const std::string getBackendName() const override { return "weft"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  net::Host* host() { return engine_->host(); }
  void abort_with(const Error& why) noexcept { engine_->fail(why); }
  void abort() override { abort_with(Error(Errc::kAborted, "the group was aborted by its owner")); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

 private:
  // How a call is to be run, whatever its c10d options' type.
  struct How {
    std::chrono::milliseconds timeout;
    bool async;
  };
  template <class CallOptions>
  How how(const CallOptions& options) const;
  // Runs `body` (on the calling thread when it is synchronous and nothing is pending) and gives its Work, whose result is `results`.
  WorkPtr submit(std::uint64_t lane, c10d::OpType type, bool async, Tensors results, std::function<int()> body);
  WorkPtr collective(c10d::OpType type, const How& how, Tensors results, std::function<void()> body);
  void run(schedule::Collective collective, const at::Tensor& shown, net::DirectArgs args);
  void all_to_all_uneven(const Tensors& outputs, const Tensors& inputs, std::chrono::milliseconds timeout);

  std::unique_ptr<Engine> engine_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  Lanes lanes_;  // last: ends before the engine
};

}  // namespace weft::comm::internal
