// Converts tensors to flat memory, and c10d's and torch's enumerators to weft's.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "weft/net/memory/direct.h"

namespace weft::comm::internal {

// Converts the reduction. Throws kInvalidArgument for PREMUL_SUM, which weft does not support.
ReduceOp reduce_op(const c10d::ReduceOp& op);

void require_same_type(const char* operation, const at::Tensor& a, const at::Tensor& b);

// Throws kInvalidArgument if the list does not have `size` tensors.
void require_list(const char* operation, const std::vector<at::Tensor>& list, int size);

// Throws kInvalidArgument if `root` is not a rank of the group.
void require_root(const char* operation, std::int64_t root, int size);

// Whether any two of the tensors share memory, as far as ATen can tell; strided views of one
// storage count as sharing.
bool any_overlap(const std::vector<at::Tensor>& tensors);

// Throws kInvalidArgument if an output shares memory with another output, or with the input of
// another place, which would be overwritten before it is read.
void require_apart(const char* operation, const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& inputs);

// Returns the tensor of a list of one. Throws kInvalidArgument for any other number of tensors.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation);

// Concatenates the tensors into one contiguous dimension.
at::Tensor flatten(const std::vector<at::Tensor>& tensors);

// The element type of a tensor whose memory is one contiguous run of real numbers on the CPU. None
// for any other tensor.
std::optional<DType> plain_type(const at::Tensor& tensor);

// A tensor's memory as one contiguous run: its own, or a copy if it is not contiguous or is on a
// CUDA device (staging.h). Complex tensors count as pairs of reals. Types that cannot be reduced
// (such as float8) can still be moved, as bytes. Throws kInvalidArgument for tensors that are not
// dense or on another device.
class Dense {
 public:
  enum Use { kIn, kOut, kInOut };
  Dense(const at::Tensor& tensor, Use use);

  void* data() const;
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  // Copies the result back to the tensor if this is a copy.
  void write_back() const;

  // Returns arguments with this memory as input and output.
  net::DirectArgs movement(std::int64_t count, std::chrono::nanoseconds timeout,
                           int root = 0) const;
  net::DirectArgs reduction(ReduceOp op, std::int64_t count,
                            std::chrono::nanoseconds timeout) const;

 private:
  at::Tensor tensor_, dense_;
  Use use_;
  DType dtype_;
  bool reducible_ = true, complex_ = false;
  std::int64_t count_ = 0;
};

}  // namespace weft::comm::internal
