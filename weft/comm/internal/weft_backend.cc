#include "weft/comm/internal/weft_backend.h"

#include <ATen/ATen.h>

#include <numeric>

#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

constexpr std::uint64_t kCollectiveLane = 0;
constexpr std::uint64_t kSendLane = std::uint64_t{1} << 60, kRecvLane = std::uint64_t{2} << 60, kAnyLane = std::uint64_t{3} << 60;
constexpr net::Channel kUserChannel = net::Channel{1} << 61;
constexpr net::Channel kSplitChannel = net::Channel{1} << 60;

std::uint64_t lane_of(std::uint64_t direction, int peer, int tag) {
  return direction | (static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 & ((std::uint64_t{1} << 60) - 1)) |
         static_cast<std::uint32_t>(tag);
}

net::Channel channel_of(int tag) { return kUserChannel | static_cast<std::uint32_t>(tag); }

// Work that its lane completes, or that was done before it was returned.
class WeftWork final : public c10d::Work {
 public:
  WeftWork(int rank, c10d::OpType type, WeftBackend::Tensors results) : Work(rank, type), results_(std::move(results)) {}

  void done(int source) {
    source_ = source;
    finish(nullptr);
    settle();
  }
  void failed(std::exception_ptr why) {
    finish(why);
    settle();
  }
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return source_; }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::lock_guard lock(future_mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      if (settled_) complete();
    }
    return future_;
  }

 private:
  void settle() {
    std::lock_guard lock(future_mutex_);
    settled_ = true;
    if (future_) complete();
  }
  void complete() {
    if (exception()) {
      future_->setError(exception());
    } else {
      future_->markCompleted(c10::IValue(results_));
    }
  }

  WeftBackend::Tensors results_;
  int source_ = -1;
  std::mutex future_mutex_;  // guards the two below
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

const at::Tensor& only(const WeftBackend::Tensors& tensors, const char* operation) {
  WEFT_REQUIRE(tensors.size() == 1, std::string(operation) + ": expected one tensor a rank, got " + std::to_string(tensors.size()));
  return tensors[0];
}

}  // namespace

WeftBackend::WeftBackend(std::unique_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout)
    : Backend(rank, size), engine_(std::move(engine)), timeout_(timeout) {}

WeftBackend::~WeftBackend() = default;

template <class CallOptions>
WeftBackend::How WeftBackend::how(const CallOptions& options) const {
  return {options.timeout.count() > 0 ? options.timeout : timeout_, options.asyncOp};
}

WeftBackend::WorkPtr WeftBackend::submit(std::uint64_t lane, c10d::OpType type, bool async, Tensors results, std::function<int()> body) {
  auto work = c10::make_intrusive<WeftWork>(rank_, type, std::move(results));
  if (!async) {
    std::exception_ptr error;
    int source = -1;
    lanes_.run(lane, [&] {
      try {
        source = body();
      } catch (...) {
        error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
    work->done(source);
    return work;
  }
  lanes_.post(lane, [work, body = std::move(body)] {
    int source = -1;
    try {
      source = body();
    } catch (...) {
      return work->failed(std::current_exception());
    }
    work->done(source);
  });
  return work;
}

WeftBackend::WorkPtr WeftBackend::collective(c10d::OpType type, const How& how, Tensors results, std::function<void()> body) {
  sequence_.fetch_add(1, std::memory_order_relaxed);
  return submit(kCollectiveLane, type, how.async, std::move(results), [body = std::move(body)] {
    body();
    return -1;
  });
}

void WeftBackend::run(Collective operation, const at::Tensor& shown, net::DirectArgs args) {
  args.shape = shown.sizes().data();
  args.dims = static_cast<int>(shown.dim());
  engine_->run(operation, args);
}

WeftBackend::WorkPtr WeftBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors, "all_reduce");
  const How how = this->how(options);
  const ReduceOp op = reduce_op(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE, how, tensors, [this, tensor, op, how] {
    const Dense data(tensor, Dense::kInOut);
    run(Collective::kAllReduce, tensor, data.reduction(op, data.count(), how.timeout));
    data.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const How how = this->how(options);
  const ReduceOp op = reduce_op(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE_COALESCED, how, tensors, [this, tensors, op, how] {
    for (const auto& tensor : tensors) {
      const Dense data(tensor, Dense::kInOut);
      run(Collective::kAllReduce, tensor, data.reduction(op, data.count(), how.timeout));
      data.write_back();
    }
  });
}

WeftBackend::WorkPtr WeftBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only(tensors, "broadcast");
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  return collective(c10d::OpType::BROADCAST, how, tensors, [this, tensor, root, how] {
    const Dense data(tensor, root == rank_ ? Dense::kIn : Dense::kOut);
    run(Collective::kBroadcast, tensor, data.movement(data.count(), how.timeout, root));
    data.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only(tensors, "reduce");
  const How how = this->how(options);
  const ReduceOp op = reduce_op(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  return collective(c10d::OpType::REDUCE, how, tensors, [this, tensor, op, root, how] {
    const Dense data(tensor, Dense::kInOut);
    auto args = data.reduction(op, data.count(), how.timeout);
    args.root = root;
    if (rank_ != root) args.output = nullptr;
    run(Collective::kReduce, tensor, args);
    if (rank_ == root) data.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const How how = this->how(options);
  require_same_type("all_gather", output, input);
  WEFT_REQUIRE(output.numel() == input.numel() * size_, "all_gather: output has " + std::to_string(output.numel()) +
                                                            " elements, expected " + std::to_string(size_) + " times the input's " +
                                                            std::to_string(input.numel()));
  return collective(c10d::OpType::_ALLGATHER_BASE, how, {output}, [this, output, input, how] {
    const Dense in(input, Dense::kIn), out(output, Dense::kOut);
    auto args = in.movement(in.count(), how.timeout);
    args.output = out.data();
    run(Collective::kAllGather, input, args);
    out.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  WorkPtr last;
  for (std::size_t i = 0; i < outputs.size(); ++i) last = _allgather_base(outputs[i], inputs[i], options);
  return last;
}

WeftBackend::WorkPtr WeftBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const at::Tensor input = only(inputs, "all_gather");
  WEFT_REQUIRE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
               "all_gather: expected one list of " + std::to_string(size_) + " output tensors");
  const How how = this->how(options);
  return collective(c10d::OpType::ALLGATHER, how, outputs[0], [this, list = outputs[0], input, how] {
    const Dense in(input, Dense::kIn);
    const at::Tensor flat = at::empty({size_, input.numel()}, input.options());
    auto args = in.movement(in.count(), how.timeout);
    args.output = flat.data_ptr();
    run(Collective::kAllGather, input, args);
    for (int peer = 0; peer < size_; ++peer)
      list[static_cast<std::size_t>(peer)].copy_(flat[peer].view(list[static_cast<std::size_t>(peer)].sizes()));
  });
}

WeftBackend::WorkPtr WeftBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor input = only(inputs, "gather");
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  Tensors list = rank_ == root && !outputs.empty() ? outputs[0] : Tensors{};
  WEFT_REQUIRE(rank_ != root || static_cast<int>(list.size()) == size_,
               "gather: the root gives a list of " + std::to_string(size_) + " tensors");
  return collective(c10d::OpType::GATHER, how, list, [this, list, input, root, how] {
    const Dense in(input, Dense::kIn);
    const at::Tensor flat = rank_ == root ? at::empty({size_, input.numel()}, input.options()) : at::Tensor();
    auto args = in.movement(in.count(), how.timeout, root);
    args.output = flat.defined() ? flat.data_ptr() : nullptr;
    run(Collective::kGather, input, args);
    for (std::size_t peer = 0; peer < list.size(); ++peer) list[peer].copy_(flat[static_cast<int64_t>(peer)].view(list[peer].sizes()));
  });
}

WeftBackend::WorkPtr WeftBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor output = only(outputs, "scatter");
  const How how = this->how(options);
  const int root = static_cast<int>(options.rootRank);
  const Tensors list = rank_ == root && !inputs.empty() ? inputs[0] : Tensors{};
  WEFT_REQUIRE(rank_ != root || static_cast<int>(list.size()) == size_,
               "scatter: the root gives a list of " + std::to_string(size_) + " tensors");
  return collective(c10d::OpType::SCATTER, how, outputs, [this, list, output, root, how] {
    const Dense out(output, Dense::kOut);
    const at::Tensor flat = rank_ == root ? flatten(list) : at::Tensor();
    auto args = out.movement(out.count(), how.timeout, root);
    args.input = flat.defined() ? flat.data_ptr() : nullptr;
    run(Collective::kScatter, output, args);
    out.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const How how = this->how(options);
  const ReduceOp op = reduce_op(options.reduceOp);
  require_same_type("reduce_scatter", output, input);
  WEFT_REQUIRE(input.numel() == output.numel() * size_, "reduce_scatter: input has " + std::to_string(input.numel()) +
                                                            " elements, expected " + std::to_string(size_) + " times the output's " +
                                                            std::to_string(output.numel()));
  return collective(c10d::OpType::_REDUCE_SCATTER_BASE, how, {output}, [this, output, input, op, how] {
    const Dense in(input, Dense::kIn), out(output, Dense::kOut);
    auto args = out.reduction(op, out.count(), how.timeout);
    args.input = in.data();
    run(Collective::kReduceScatter, output, args);
    out.write_back();
  });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  WorkPtr last;
  for (std::size_t i = 0; i < outputs.size(); ++i) last = _reduce_scatter_base(outputs[i], inputs[i], options);
  return last;
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = only(outputs, "reduce_scatter");
  WEFT_REQUIRE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
               "reduce_scatter: expected one list of " + std::to_string(size_) + " input tensors");
  at::Tensor flat = flatten(inputs[0]);
  at::Tensor out = output;
  return _reduce_scatter_base(out, flat, options);
}

WeftBackend::WorkPtr WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const How how = this->how(options);
  require_same_type("all_to_all", output, input);
  if (output_splits.empty() && input_splits.empty()) {
    WEFT_REQUIRE(input.numel() % size_ == 0 && input.numel() == output.numel(),
                 "all_to_all: input and output need the same number of elements, divisible by " + std::to_string(size_) + " ranks");
    return collective(c10d::OpType::ALLTOALL_BASE, how, {output}, [this, output, input, how] {
      const Dense in(input, Dense::kIn), out(output, Dense::kOut);
      auto args = in.movement(in.count() / size_, how.timeout);
      args.output = out.data();
      run(Collective::kAllToAll, input, args);
      out.write_back();
    });
  }
  const auto split = [&](const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
    std::vector<int64_t> each = sizes.empty() ? std::vector<int64_t>(static_cast<std::size_t>(size_), tensor.size(0) / size_) : sizes;
    WEFT_REQUIRE(static_cast<int>(each.size()) == size_ && std::accumulate(each.begin(), each.end(), int64_t{0}) == tensor.size(0),
                 "all_to_all: split sizes must be one a rank and sum to the tensor's first dimension");
    return tensor.split_with_sizes(each, 0);
  };
  return collective(c10d::OpType::ALLTOALL_BASE, how, {output},
                    [this, outputs = split(output, output_splits), inputs = split(input, input_splits), timeout = how.timeout] {
                      all_to_all_uneven(outputs, inputs, timeout);
                    });
}

WeftBackend::WorkPtr WeftBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const How how = this->how(options);
  WEFT_REQUIRE(static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_,
               "all_to_all: expected " + std::to_string(size_) + " input and output tensors");
  return collective(c10d::OpType::ALLTOALL, how, outputs,
                    [this, outputs, inputs, timeout = how.timeout] { all_to_all_uneven(outputs, inputs, timeout); });
}

// Blocks of any length, by messages: a wrong length is an error on its receiver.
void WeftBackend::all_to_all_uneven(const Tensors& outputs, const Tensors& inputs, std::chrono::milliseconds timeout) {
  std::vector<Dense> in, out;
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  for (int peer = 0; peer < size_; ++peer) {
    in.emplace_back(inputs[static_cast<std::size_t>(peer)], Dense::kIn);
    out.emplace_back(outputs[static_cast<std::size_t>(peer)], Dense::kOut);
    sends.push_back({peer, {static_cast<const std::byte*>(in.back().data()), in.back().bytes()}});
    recvs.push_back({peer, {static_cast<std::byte*>(out.back().data()), out.back().bytes()}});
  }
  engine_->endpoint().exchange(kSplitChannel, sends, recvs, Deadline::in(timeout));
  for (const auto& tensor : out) tensor.write_back();
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "send");
  WEFT_REQUIRE(peer >= 0 && peer < size_, "send: rank " + std::to_string(peer) + " is not in the group of " + std::to_string(size_));
  return submit(lane_of(kSendLane, peer, tag), c10d::OpType::SEND, true, tensors, [this, tensor, peer, tag] {
    const Dense data(tensor, Dense::kIn);
    engine_->endpoint().send(peer, channel_of(tag), {static_cast<const std::byte*>(data.data()), data.bytes()}, Deadline::in(timeout_));
    return -1;
  });
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  WEFT_REQUIRE(peer >= 0 && peer < size_, "recv: rank " + std::to_string(peer) + " is not in the group of " + std::to_string(size_));
  return submit(lane_of(kRecvLane, peer, tag), c10d::OpType::RECV, true, tensors, [this, tensor, peer, tag] {
    const Dense data(tensor, Dense::kOut);
    engine_->endpoint().recv(peer, channel_of(tag), {static_cast<std::byte*>(data.data()), data.bytes()}, Deadline::in(timeout_));
    data.write_back();
    return peer;
  });
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  return submit(lane_of(kAnyLane, 0, tag), c10d::OpType::RECVANYSOURCE, true, tensors, [this, tensor, tag] {
    const auto deadline = Deadline::in(timeout_);
    const int peer = engine_->endpoint().await_any(channel_of(tag), deadline);
    const Dense data(tensor, Dense::kOut);
    engine_->endpoint().recv(peer, channel_of(tag), {static_cast<std::byte*>(data.data()), data.bytes()}, deadline);
    data.write_back();
    return peer;
  });
}

WeftBackend::WorkPtr WeftBackend::barrier(const c10d::BarrierOptions& options) {
  const How how = this->how(options);
  return collective(c10d::OpType::BARRIER, how, {}, [this, how] { engine_->run(Collective::kBarrier, {.timeout = how.timeout}); });
}

}  // namespace weft::comm::internal
