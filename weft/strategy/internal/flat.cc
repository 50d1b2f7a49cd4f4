#include "weft/strategy/internal/flat.h"

#include <ATen/ATen.h>

#include <utility>

namespace weft::strategy::internal {

Flat::Flat(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) {
    count_ += tensor.numel();
    if (tensor.scalar_type() == at::kDouble) type_ = at::kDouble;
  }
}

at::Tensor Flat::zeros() const { return at::zeros({count_}, type_); }

std::vector<at::Tensor> Flat::views(const at::Tensor& flat) const {
  std::vector<at::Tensor> views;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    views.push_back(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return views;
}

at::Tensor Flat::read() const {
  at::Tensor flat = at::empty({count_}, type_);
  const std::vector<at::Tensor> into = views(flat);
  for (std::size_t i = 0; i < into.size(); ++i) into[i].copy_(tensors_[i]);
  return flat;
}

void Flat::write(const at::Tensor& flat) const {
  const std::vector<at::Tensor> from = views(flat);
  for (std::size_t i = 0; i < from.size(); ++i) tensors_[i].copy_(from[i]);
}

}  // namespace weft::strategy::internal
