// The all-to-all of WeftBackend.
#include <ATen/ATen.h>

#include <numeric>

#include "weft/comm/internal/tensor_call.h"
#include "weft/comm/internal/tensor_data.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm::internal {

using schedule::Collective;
using std::chrono::milliseconds;

namespace {

constexpr net::Channel kSplitChannel = net::Channel{1} << 60;

}  // namespace

WeftBackend::WorkPtr WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  if (auto* const devices = device_backend(input))
    return devices->alltoall_base(output, input, output_splits, input_splits, options);
  const How how = this->how(options);
  const Shown shown{c10d::OpType::ALLTOALL_BASE, "weft:all_to_all", {input}, {output}};
  require_same_type("all_to_all", output, input);
  if (output_splits.empty() && input_splits.empty()) {
    WEFT_REQUIRE(input.numel() % size_ == 0 && input.numel() == output.numel(),
                 "all_to_all: input and output need the same number of elements, divisible by " +
                     std::to_string(size_) + " ranks");
    return collective(shown, how, [this, output, input, how] {
      run_call(*engine_, {.collective = Collective::kAllToAll,
                          .input = input,
                          .output = output,
                          .timeout = how.timeout});
    });
  }
  const auto split = [&](const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
    std::vector<int64_t> each =
        sizes.empty()
            ? std::vector<int64_t>(static_cast<std::size_t>(size_), tensor.size(0) / size_)
            : sizes;
    WEFT_REQUIRE(static_cast<int>(each.size()) == size_ &&
                     std::accumulate(each.begin(), each.end(), int64_t{0}) == tensor.size(0),
                 "all_to_all: there must be one split size per rank, and they must add up to the "
                 "tensor's first dimension");
    return tensor.split_with_sizes(each, 0);
  };
  return collective(
      shown, how,
      [this, outputs = split(output, output_splits), inputs = split(input, input_splits),
       timeout = how.timeout] { all_to_all_uneven(outputs, inputs, timeout); });
}

WeftBackend::WorkPtr WeftBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  if (auto* const devices = device_backend(inputs))
    return devices->alltoall(outputs, inputs, options);
  const How how = this->how(options);
  require_list("all_to_all", outputs, size_);
  require_list("all_to_all", inputs, size_);
  for (const auto* list : {&outputs, &inputs}) {
    for (const auto& tensor : *list) require_same_type("all_to_all", tensor, outputs[0]);
  }
  require_apart("all_to_all", outputs);
  return collective({c10d::OpType::ALLTOALL, "weft:all_to_all", inputs, outputs}, how,
                    [this, outputs, inputs, timeout = how.timeout] {
                      all_to_all_uneven(outputs, inputs, timeout);
                    });
}

// Agrees on the call, then sends blocks of any length by messages. A wrong length is an error on
// the receiver. Blocks arrive while others are sent, so inputs that share memory with outputs are
// copied first.
void WeftBackend::all_to_all_uneven(const Tensors& outputs, const Tensors& inputs,
                                    milliseconds timeout) {
  const Tensors own = apart_from(outputs, inputs);
  std::vector<Dense> in, out;
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  for (int peer = 0; peer < size_; ++peer) {
    in.emplace_back(own[static_cast<std::size_t>(peer)], Dense::kIn);
    out.emplace_back(outputs[static_cast<std::size_t>(peer)], Dense::kOut);
    sends.push_back({peer, {static_cast<const std::byte*>(in.back().data()), in.back().bytes()}});
    recvs.push_back({peer, {static_cast<std::byte*>(out.back().data()), out.back().bytes()}});
  }
  engine_->run(Collective::kAllToAll, {.dtype = out.front().dtype(),
                                       .timeout = timeout,
                                       .dims = net::kPartSizes,
                                       .width = out.front().width()});
  engine_->endpoint().exchange(kSplitChannel, sends, recvs, Deadline::in(timeout));
  for (const auto& tensor : out) tensor.write_back();
}

}  // namespace weft::comm::internal
