// Signatures of calls, and the error for two different ones (direct.h).
#include <algorithm>

#include "weft/net/memory/direct.h"
#include "weft/schedule/schedule.h"

namespace weft::net {
namespace {

using schedule::Collective;

const char* name_of(std::uint8_t operation) {
  return schedule::to_string(static_cast<Collective>(operation));
}

bool has_root(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kReduce || c == Collective::kGather ||
         c == Collective::kScatter;
}

// The type of the caller's elements, each of `width` values.
std::string type_name(DType dtype, int width) {
  if (width <= 1) return to_string(dtype);
  if (width == 2 && dtype == DType::kF32) return "complex64";
  if (width == 2 && dtype == DType::kF64) return "complex128";
  return std::to_string(static_cast<std::size_t>(width) * size_of(dtype)) + "-byte values";
}

}  // namespace

Signature Signature::compared() const {
  Signature without = *this;
  for (std::int32_t& size : without.shape) size = 0;
  if (dims() != kParts) without.form = static_cast<std::uint8_t>(width() << 3);
  return without;
}

bool Signature::operator==(const Signature& other) const {
  return operation == other.operation && dtype == other.dtype && op == other.op &&
         width() == other.width() && (dims() == kParts) == (other.dims() == kParts) &&
         root == other.root && count == other.count;
}

std::string Signature::text() const {
  if (operation >= schedule::collectives().size())
    return "operation " + std::to_string(operation);  // data of a peer is not trusted
  std::string text = name_of(operation);
  if (static_cast<Collective>(operation) == Collective::kBarrier) return text + "()";
  text += "(";
  if (reduces(static_cast<Collective>(operation))) text += std::string(to_string(op)) + ", ";
  text += type_name(dtype, width());
  if (dims() == kParts) return text + ", with sizes of parts)";
  text += "[";
  if (dims() <= 4) {
    for (int i = 0; i < dims(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  } else {
    text += std::to_string(count);
  }
  text += "]";
  if (has_root(static_cast<Collective>(operation))) {
    text += ", root " + std::to_string(root);
  } else if (root > 0) {
    text += " and " + std::to_string(root) + " more";
  }
  return text + ")";
}

Signature signature_of(Collective operation, const DirectArgs& args) {
  Signature s{.operation = static_cast<std::uint8_t>(operation),
              .dtype = args.is_half ? DType::kF16 : args.dtype,
              .op = args.op,
              .root = has_root(operation) ? args.root : args.more,
              .count = args.count};
  int dims = 1;
  if (args.dims == kPartSizes) {
    dims = Signature::kParts;
  } else if (args.shape == nullptr) {
    s.shape[0] = static_cast<std::int32_t>(args.count);
  } else {
    dims = args.dims <= 4 ? args.dims : Signature::kMoreDims;
    for (int i = 0; i < std::min(args.dims, 4); ++i)
      s.shape[i] = static_cast<std::int32_t>(args.shape[i]);
  }
  s.form = static_cast<std::uint8_t>(dims | args.width << 3);
  return s;
}

Error mismatch_error(int rank, const Signature& mine, int peer, const Signature& other) {
  return Error(Errc::kInvalidArgument,
               "rank " + std::to_string(rank) + " calls " + mine.text() + ", rank " +
                   std::to_string(peer) + " calls " + other.text() +
                   "; all ranks of a group must call the same collectives in the same order",
               {name_of(mine.operation), rank, peer});
}

}  // namespace weft::net
