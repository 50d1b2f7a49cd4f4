// Collectives know flat memory of some number types. This file says how a tensor is such memory:
//
//   - A complex number is two reals. A type that cannot be reduced (float8, say) is only moved, as
//     bytes.
//   - Memory that is not one run of the tensor's own values (strides, a lazy conjugate, a device)
//     becomes a copy. A Dense is made within the operation, on the thread that runs it, so the copy
//     has the results of earlier operations. write_back() copies the result to the tensor.
//
// The memory of a tensor counts from its first to its last element. So two interleaved views count
// as overlapping, which costs a copy. No real overlap is missed.
#include "weft/comm/internal/tensor_data.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "weft/base/error.h"
#include "weft/comm/internal/staging.h"
#include "weft/kernels/reduce.h"

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

bool is_whole(at::ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/true); }

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

// The tensor times one number, in the tensor's type.
at::Tensor times(const at::Tensor& tensor, const at::Scalar& factor) {
  const at::ScalarType type = tensor.scalar_type();
  if (!is_whole(type) || !factor.isFloatingPoint()) return tensor.mul(factor).to(type);
  // Below this, the factor fits into an integer, which keeps large values of the tensor exact.
  constexpr double kLimit = 0x1p62;
  const double by = factor.toDouble();
  if (std::trunc(by) == by && std::abs(by) < kLimit)
    return tensor.mul(static_cast<std::int64_t>(by)).to(type);
  return tensor.to(at::kDouble).mul(by).to(type);
}

// Memory that a tensor's elements are in: from the first to the last.
std::span<const std::byte> memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) return {};
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())};
}

// Bytes of the tensor's storage. A caller may have made it too short: untyped_storage().resize_().
std::size_t storage_bytes(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return storage ? storage.nbytes() : 0;
}

// Throws kInvalidArgument if elements of a strided tensor are beyond the end of its storage.
void require_stored(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const std::size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  WEFT_REQUIRE(needed <= storage_bytes(tensor),
               "a tensor of shape " + shape_of(tensor) + " needs " + std::to_string(needed) +
                   " bytes, but its storage has " + std::to_string(storage_bytes(tensor)) +
                   "; it was made shorter, such as by untyped_storage().resize_()");
}

struct Place {
  std::span<const std::byte> memory;
  std::size_t number;  // in its list
};

// Ordered by address, without the empty ones.
std::vector<Place> places_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto memory = memory_of(tensors[i]); !memory.empty()) places.push_back({memory, i});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::less<>()(a.memory.data(), b.memory.data());
  });
  return places;
}

// Calls found(one, other) for places of which the other begins before the one ends.
template <class Found>
void each_overlap(const std::vector<Place>& places, const Found& found) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t j = i + 1; j < places.size(); ++j) {
      // Ordered by their begin: all later ones begin behind this one too.
      if (!overlap(places[i].memory, places[j].memory)) break;
      found(places[i], places[j]);
    }
  }
}

}  // namespace

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::AVG: return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::BAND: return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR: return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBitXor;
    default: throw Error(Errc::kInvalidArgument, "the weft backend does not have this reduction");
  }
}

at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto* by = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  WEFT_REQUIRE(by != nullptr, "PREMUL_SUM needs a factor");
  require_reduction(tensor, ReduceOp::kSum);
  require_dense(tensor);
  const at::Tensor& factor = by->tensor_factor;
  if (!factor.defined()) return times(tensor, by->double_factor);
  WEFT_REQUIRE(factor.numel() == 1,
               "PREMUL_SUM: the factor has shape " + shape_of(factor) + "; use one number");
  WEFT_REQUIRE(tensor.is_complex() || !factor.is_complex(),
               std::string("PREMUL_SUM: a complex factor of ") +
                   c10::toString(tensor.scalar_type()) + "; use a real one");
  return times(tensor, factor.item());
}

void require_reduction(const at::Tensor& tensor, ReduceOp op) {
  const Element element = element_of(tensor.scalar_type());
  const std::string type = c10::toString(tensor.scalar_type());
  WEFT_REQUIRE(element.reducible, "tensors of type " + type + " cannot be reduced");
  WEFT_REQUIRE(element.per_element == 1 || op == ReduceOp::kSum || op == ReduceOp::kAvg,
               "complex tensors have no " + std::string(to_string(op)));
  WEFT_REQUIRE(kernels::has_operation(element.dtype, op), kernels::no_operation(element.dtype, op));
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

void require_writable(const std::string& operation, const std::vector<at::Tensor>& outputs) {
  for (const auto& output : outputs) {
    WEFT_REQUIRE(output.defined(), operation + ": an output is an undefined tensor");
    WEFT_REQUIRE(
        output.layout() != at::kStrided || at::has_internal_overlap(output) != at::MemOverlap::Yes,
        operation + ": an output of shape " + shape_of(output) +
            " is expanded: several of its elements share memory; use its contiguous()");
    if (output.layout() == at::kStrided && !output.is_quantized() && !output.is_meta())
      require_stored(output);
  }
}

void require_apart(const char* operation, const std::vector<at::Tensor>& outputs) {
  each_overlap(places_of(outputs), [&](const Place& a, const Place& b) {
    WEFT_REQUIRE(!outputs[a.number].is_non_overlapping_and_dense() ||
                     !outputs[b.number].is_non_overlapping_and_dense(),
                 std::string(operation) + ": output " +
                     std::to_string(std::min(a.number, b.number)) + " shares memory with output " +
                     std::to_string(std::max(a.number, b.number)) + "; give each its own memory");
  });
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

bool any_overlap(const std::vector<at::Tensor>& tensors) {
  bool any = false;
  each_overlap(places_of(tensors), [&](const Place&, const Place&) { any = true; });
  return any;
}

std::vector<at::Tensor> apart_from(const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> all = outputs;
  all.insert(all.end(), inputs.begin(), inputs.end());
  std::vector<at::Tensor> apart = inputs;
  const std::size_t first = outputs.size();
  each_overlap(places_of(all), [&](const Place& a, const Place& b) {
    const auto [low, high] = std::minmax(a.number, b.number);
    // Inputs may overlap each other: only an output changes one.
    if (low < first && high >= first && apart[high - first].is_same(inputs[high - first])) {
      require_dense(inputs[high - first]);
      apart[high - first] = inputs[high - first].clone();
    }
  });
  return apart;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  WEFT_REQUIRE(tensors.size() == 1, std::string(operation) +
                                        ": expected one tensor per rank, got " +
                                        std::to_string(tensors.size()));
  return tensors[0];
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) {
    require_dense(tensor);
    flat.push_back(tensor.reshape({-1}));
  }
  return at::cat(flat);
}

std::optional<DType> plain_type(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu() ||
      !tensor.is_contiguous() || tensor.is_neg())
    return std::nullopt;
  const Element element = element_of(tensor.scalar_type());
  if (!element.reducible || element.per_element != 1) return std::nullopt;
  // Quantized types are not reducible. The regular path refuses a storage that is too short.
  const std::size_t bytes = tensor.nbytes();
  if (bytes > 0 &&
      bytes + static_cast<std::size_t>(tensor.storage_offset()) * size_of(element.dtype) >
          storage_bytes(tensor))
    return std::nullopt;
  return element.dtype;
}

void require_dense(const at::Tensor& tensor) {
  WEFT_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                   (tensor.is_cpu() || tensor.is_cuda()),
               "the weft backend supports dense tensors on the CPU or a CUDA device, not " +
                   (!tensor.defined()                 ? "an undefined tensor"
                    : tensor.layout() != at::kStrided ? "a sparse tensor"
                    : tensor.is_quantized() ? "a quantized tensor; send its int_repr() and scale"
                                            : "a tensor on " + tensor.device().str()));
  require_stored(tensor);
}

Dense::Dense(const at::Tensor& tensor, Use use) : tensor_(tensor), use_(use) {
  require_dense(tensor);
  dense_ = tensor.is_cpu() ? tensor.contiguous().resolve_conj().resolve_neg()
           : use == kOut   ? host_memory_for(tensor)
                           : to_host(tensor);
  const Element element = element_of(tensor.scalar_type());
  dtype_ = element.dtype;
  width_ = element.per_element;
  count_ = tensor.numel() * element.per_element;
}

void* Dense::data() const { return dense_.data_ptr(); }

void Dense::copy_memory() { dense_ = dense_.clone(); }

void Dense::write_back() const {
  if (use_ != kIn && !dense_.is_same(tensor_)) tensor_.copy_(dense_);
}

}  // namespace weft::comm::internal
