#include "weft/comm/internal/staging.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace weft::comm::internal {

Moment Moment::now(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& results) {
  Moment moment;
  for (const auto* const tensors : {&inputs, &results}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || !tensor.is_cuda()) continue;  // other devices are refused later
      const c10::Device device = tensor.device();
      const auto known = [&](const c10::Stream& stream) { return stream.device() == device; };
      if (std::any_of(moment.own_.begin(), moment.own_.end(), known)) continue;
      const c10::impl::VirtualGuardImpl streams(device.type());
      moment.events_.push_back(std::make_shared<c10::Event>(device.type()));
      moment.events_.back()->record(streams.getStream(device));
      moment.own_.push_back(streams.getStreamFromGlobalPool(device));
    }
  }
  return moment;
}

Moment::Scope::Scope(const Moment& moment) : moment_(moment) {
  for (const auto& event : moment.events_) event->synchronize();
  if (!moment.own_.empty()) streams_.emplace(moment.own_);
}

void Moment::Scope::finish() const {
  for (const c10::Stream& stream : moment_.own_) stream.synchronize();
}

at::Tensor to_host(const at::Tensor& tensor) { return host_memory_for(tensor).copy_(tensor); }

at::Tensor host_memory_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
}

}  // namespace weft::comm::internal
