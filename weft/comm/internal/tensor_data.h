// Converts tensors to flat memory, and c10d's and torch's enumerators to weft's.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "weft/base/dtype.h"

namespace weft::comm::internal {

// Converts the reduction. PREMUL_SUM is the sum of what premultiplied() returns.
ReduceOp reduce_op(const c10d::ReduceOp& op);

// The tensor times the factor of PREMUL_SUM, in the tensor's own type and shape; the tensor itself
// for other reductions. Integers are multiplied as integers by a whole factor, and rounded towards
// zero otherwise. Throws kInvalidArgument for a factor that is not one number, and for a complex
// factor of real numbers.
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Throws kInvalidArgument if tensors of this type have no such reduction.
void require_reduction(const at::Tensor& tensor, ReduceOp op);

void require_same_type(const char* operation, const at::Tensor& a, const at::Tensor& b);

// Throws kInvalidArgument if the list does not have `size` tensors.
void require_list(const char* operation, const std::vector<at::Tensor>& list, int size);

// Throws kInvalidArgument if `root` is not a rank of the group.
void require_root(const char* operation, std::int64_t root, int size);

// Throws kInvalidArgument if a tensor is undefined, or is expanded, so that several of its elements
// are one place in memory, or if its storage is too short for its elements.
void require_writable(const std::string& operation, const std::vector<at::Tensor>& outputs);

// Throws kInvalidArgument if two contiguous outputs share memory.
void require_apart(const char* operation, const std::vector<at::Tensor>& outputs);

// True if two pieces of memory have a byte in common.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

// Whether any two of the tensors may share memory. Interleaved views of one storage count as
// sharing.
bool any_overlap(const std::vector<at::Tensor>& tensors);

// The inputs, for outputs that are written before all inputs have been read: a copy of each input
// that may share memory with an output.
std::vector<at::Tensor> apart_from(const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& inputs);

// Returns the tensor of a list of one. Throws kInvalidArgument for any other number of tensors.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation);

// Concatenates the tensors into one contiguous dimension.
at::Tensor flatten(const std::vector<at::Tensor>& tensors);

// The element type of a tensor whose memory is one contiguous run of real numbers on the CPU. None
// for any other tensor, and if its storage is too short for its elements.
std::optional<DType> plain_type(const at::Tensor& tensor);

// Throws kInvalidArgument for tensors that Dense cannot take.
void require_dense(const at::Tensor& tensor);

// A tensor's memory as one contiguous run: its own, or a copy if it is not contiguous, is on a CUDA
// device (staging.h), or is a lazy conjugate or negation. Complex tensors count as pairs of reals.
// Types that cannot be reduced (such as float8) can still be moved, as bytes. Throws
// kInvalidArgument for tensors that are not dense, that are quantized or on another device, or
// whose storage is too short for their elements.
class Dense {
 public:
  enum Use { kIn, kOut, kInOut };
  Dense(const at::Tensor& tensor, Use use);

  void* data() const;
  DType dtype() const { return dtype_; }
  int width() const { return width_; }  // values of dtype() in an element of the tensor
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  std::span<std::byte> memory() const { return {static_cast<std::byte*>(data()), bytes()}; }
  // From now on, the memory is a copy. For inputs.
  void copy_memory();
  // Copies the result back to the tensor if this is a copy.
  void write_back() const;

 private:
  at::Tensor tensor_, dense_;
  Use use_;
  DType dtype_;
  int width_ = 1;
  std::int64_t count_ = 0;
};

}  // namespace weft::comm::internal
