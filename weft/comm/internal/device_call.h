// Calls of a device backend such as NCCL. It moves the memory of a tensor in order, whatever the
// strides. So a tensor that is not contiguous goes through a copy.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {

// The tensor, or a contiguous copy of its values. A sparse tensor stays as it is.
inline at::Tensor dense_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  return tensor.contiguous().resolve_conj().resolve_neg();
}
template <class Item>
std::vector<Item> dense_of(const std::vector<Item>& list) {
  std::vector<Item> all;
  for (const Item& item : list) all.push_back(dense_of(item));
  return all;
}

inline void require_writable(const std::string& operation, const at::Tensor& output) {
  require_writable(operation, std::vector<at::Tensor>{output});
}
inline void require_writable(const std::string& operation,
                             const std::vector<std::vector<at::Tensor>>& outputs) {
  for (const auto& list : outputs) require_writable(operation, list);
}

// Copies the values of each tensor that has a copy.
inline void copy_back(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_same(to)) to.copy_(from);
}
template <class Item>
void copy_back(const std::vector<Item>& from, const std::vector<Item>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) copy_back(from[i], to[i]);
}

inline bool are_same(const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }
template <class Item>
bool are_same(const std::vector<Item>& a, const std::vector<Item>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!are_same(a[i], b[i])) return false;
  }
  return true;
}

// Runs `call` on contiguous tensors in place of `outputs`: a tensor, a list or a list of lists.
// Results in copies are written in the current stream, which waits for the call.
template <class Outputs, class Call>
c10::intrusive_ptr<c10d::Work> device_call(const char* operation, const Outputs& outputs,
                                           const Call& call) {
  const at::NoGradGuard no_grad;
  require_writable(operation, outputs);
  Outputs results = dense_of(outputs);
  auto work = call(results);
  if (are_same(results, outputs)) return work;
  if (work) work->wait();
  copy_back(results, outputs);
  return work;
}

}  // namespace weft::comm::internal
