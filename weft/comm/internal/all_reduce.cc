#include "weft/comm/internal/all_reduce.h"

#include <ATen/MemoryOverlap.h>

#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg: return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kBitAnd: return c10d::ReduceOp::BAND;
    case ReduceOp::kBitOr: return c10d::ReduceOp::BOR;
    case ReduceOp::kBitXor: return c10d::ReduceOp::BXOR;
  }
  throw Error(Errc::kInternal, "unknown reduction");
}

void require_apart(const char* operation, const at::Tensor& tensor) {
  WEFT_REQUIRE(
      !tensor.defined() || tensor.layout() != at::kStrided ||
          at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      std::string(operation) +
          ": elements of the tensor share memory, as after expand(), so it cannot hold the "
          "result; pass tensor.contiguous()");
}

std::optional<net::DirectArgs> plain_args(const at::Tensor& tensor) {
  const auto type = plain_type(tensor);
  if (!type) return std::nullopt;
  void* const data = tensor.data_ptr();
  return net::DirectArgs{.input = data,
                         .output = data,
                         .count = tensor.numel(),
                         .dtype = *type,
                         .shape = tensor.sizes().data(),
                         .dims = static_cast<int>(tensor.dim())};
}

c10::intrusive_ptr<c10d::Work> all_reduce_by(c10d::Backend& backend, const at::Tensor& tensor,
                                             ReduceOp op, bool async,
                                             std::chrono::milliseconds timeout) {
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  options.asyncOp = async;
  if (timeout.count() > 0) options.timeout = timeout;
  std::vector<at::Tensor> tensors{tensor};
  return backend.allreduce(tensors, options);
}

}  // namespace weft::comm::internal
