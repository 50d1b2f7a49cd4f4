#include "weft/engine/internal/staging.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::parallel::internal {
namespace {

std::size_t block_bytes(const at::Tensor& tensor) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(tensor.numel()) * tensor.element_size());
}

}  // namespace

Staging::Staging(net::Host& host, std::vector<at::Tensor> params)
    : host_(host), params_(std::move(params)), blocks_(params_.size(), nullptr) {}

Staging::~Staging() {
  for (std::byte* block : blocks_) {
    if (block != nullptr) host_.deallocate(block);
  }
}

at::Tensor Staging::of(int param) {
  const auto at = static_cast<std::size_t>(param);
  if (blocks_[at] == nullptr) blocks_[at] = host_.allocate(block_bytes(params_[at]));
  return at::from_blob(blocks_[at], params_[at].sizes(), params_[at].options().requires_grad(false));
}

net::Host::Token Staging::copy(int param, const at::Tensor& gradient) {
  at::NoGradGuard guard;
  of(param).copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  in_use_.push_back(param);
  return host_.token(blocks_[static_cast<std::size_t>(param)]);
}

net::Host::Token Staging::zeros(int param) {
  at::NoGradGuard guard;
  of(param).zero_();
  in_use_.push_back(param);
  return host_.token(blocks_[static_cast<std::size_t>(param)]);
}

void Staging::put_back(const std::vector<bool>& used, bool results) {
  at::NoGradGuard guard;
  for (int param : in_use_) {
    if (!results || !used[static_cast<std::size_t>(param)]) continue;
    at::Tensor& grad = params_[static_cast<std::size_t>(param)].mutable_grad();
    if (!grad.defined() || grad.is_sparse()) {
      grad = of(param).clone();
    } else {
      grad.copy_(of(param));
    }
  }
  in_use_.clear();
}

void SharedBuffers::show(Ledger& ledger, int first) {
  copies_.resize(buffers_.size());
  at::NoGradGuard guard;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    net::Host::Token token = buffers_[i].is_contiguous() ? host_.token(buffers_[i].data_ptr()) : net::Host::kNoToken;
    if (token == net::Host::kNoToken) {
      if (!copies_[i].defined()) copies_[i] = shared_like(buffers_[i]);
      copies_[i].copy_(buffers_[i]);
      token = host_.token(copies_[i].data_ptr());
    }
    ledger.put(first + static_cast<int>(i), token);
  }
}

void SharedBuffers::take(const Ledger& ledger, int first) {
  at::NoGradGuard guard;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    std::byte* from = host_.at(0, ledger.token(0, first + static_cast<int>(i)));
    buffers_[i].copy_(at::from_blob(from, buffers_[i].sizes(), buffers_[i].options()));
  }
}

at::Tensor SharedBuffers::shared_like(const at::Tensor& like) {
  std::byte* block = host_.allocate(block_bytes(like));
  net::Host* host = &host_;
  return at::from_blob(
      block, like.sizes(), [host](void* p) { host->deallocate(static_cast<std::byte*>(p)); }, like.options());
}

}  // namespace weft::parallel::internal
