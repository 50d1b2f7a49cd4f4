#include "weft/comm/internal/tensor_data.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include "weft/comm/internal/staging.h"

namespace weft::comm::internal {
namespace {

struct Element {
  DType dtype;
  int per_element;  // 2 for complex
  bool reducible;
};

Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return {DType::kF64, 1, true};
    case at::kFloat: return {DType::kF32, 1, true};
    case at::kHalf: return {DType::kF16, 1, true};
    case at::kBFloat16: return {DType::kBF16, 1, true};
    case at::kLong: return {DType::kI64, 1, true};
    case at::kInt: return {DType::kI32, 1, true};
    case at::kShort: return {DType::kI16, 1, true};
    case at::kChar: return {DType::kI8, 1, true};
    case at::kByte: return {DType::kU8, 1, true};
    case at::kBool: return {DType::kBool, 1, true};
    case at::kComplexFloat: return {DType::kF32, 2, true};
    case at::kComplexDouble: return {DType::kF64, 2, true};
    default: return {DType::kU8, static_cast<int>(c10::elementSize(type)), false};
  }
}

}  // namespace

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::AVG: return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::BAND: return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR: return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBitXor;
    default:
      throw Error(Errc::kInvalidArgument,
                  "the weft backend does not support PREMUL_SUM; scale the tensor, then use SUM");
  }
}

void require_same_type(const char* operation, const at::Tensor& a, const at::Tensor& b) {
  WEFT_REQUIRE(a.scalar_type() == b.scalar_type(),
               std::string(operation) + ": output is " + c10::toString(a.scalar_type()) +
                   ", input is " + c10::toString(b.scalar_type()) +
                   "; both must have the same type");
}

void require_list(const char* operation, const std::vector<at::Tensor>& list, int size) {
  WEFT_REQUIRE(static_cast<int>(list.size()) == size,
               std::string(operation) + ": expected a list of " + std::to_string(size) +
                   " tensors, got " + std::to_string(list.size()));
}

void require_root(const char* operation, std::int64_t root, int size) {
  WEFT_REQUIRE(root >= 0 && root < size, std::string(operation) + ": root " + std::to_string(root) +
                                             " is not a rank of the group of " +
                                             std::to_string(size));
}

bool any_overlap(const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool strided = !tensors[i].is_sparse() && !tensors[j].is_sparse();
      if (strided && at::get_overlap_status(tensors[i], tensors[j]) != at::MemOverlapStatus::No)
        return true;
    }
  }
  return false;
}

void require_apart(const char* operation, const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& inputs) {
  const auto share = [](const at::Tensor& a, const at::Tensor& b) {
    const auto status = at::get_overlap_status(a, b);
    return status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      if (i == j) continue;
      const bool with_output = share(outputs[i], outputs[j]);
      WEFT_REQUIRE(!with_output && (j >= inputs.size() || !share(outputs[i], inputs[j])),
                   std::string(operation) + ": output " + std::to_string(i) +
                       " shares memory with " + (with_output ? "output " : "input ") +
                       std::to_string(j) + "; give each its own memory");
    }
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  WEFT_REQUIRE(tensors.size() == 1, std::string(operation) +
                                        ": expected one tensor per rank, got " +
                                        std::to_string(tensors.size()));
  return tensors[0];
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

std::optional<DType> plain_type(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu() ||
      !tensor.is_contiguous())
    return std::nullopt;
  const Element element = element_of(tensor.scalar_type());
  if (!element.reducible || element.per_element != 1) return std::nullopt;
  return element.dtype;
}

Dense::Dense(const at::Tensor& tensor, Use use) : tensor_(tensor), use_(use) {
  WEFT_REQUIRE(
      tensor.defined() && tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()),
      "the weft backend supports dense tensors on the CPU or a CUDA device, not " +
          (tensor.defined()
               ? std::string(tensor.is_sparse() ? "a sparse tensor"
                                                : "a tensor on " + tensor.device().str())
               : "an undefined tensor"));
  dense_ = tensor.is_cpu() ? tensor.contiguous() : to_host(tensor);
  const Element element = element_of(tensor.scalar_type());
  dtype_ = element.dtype;
  reducible_ = element.reducible;
  complex_ = element.per_element == 2 && element.reducible;
  count_ = tensor.numel() * element.per_element;
}

void* Dense::data() const { return dense_.data_ptr(); }

void Dense::write_back() const {
  if (use_ != kIn && !dense_.is_same(tensor_)) tensor_.copy_(dense_);
}

net::DirectArgs Dense::movement(std::int64_t count, std::chrono::nanoseconds timeout,
                                int root) const {
  return {.input = data(),
          .output = data(),
          .count = count,
          .dtype = dtype_,
          .root = root,
          .timeout = timeout};
}

net::DirectArgs Dense::reduction(ReduceOp op, std::int64_t count,
                                 std::chrono::nanoseconds timeout) const {
  WEFT_REQUIRE(reducible_, std::string("tensors of type ") + c10::toString(tensor_.scalar_type()) +
                               " cannot be reduced");
  WEFT_REQUIRE(!complex_ || op == ReduceOp::kSum || op == ReduceOp::kAvg,
               "complex tensors have no " + std::string(to_string(op)));
  net::DirectArgs args = movement(count, timeout);
  args.op = op;
  return args;
}

}  // namespace weft::comm::internal
