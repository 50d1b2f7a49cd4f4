// Signatures of calls, and the error for two different ones (direct.h).
#include "weft/net/memory/direct.h"
#include "weft/schedule/schedule.h"

namespace weft::net {
namespace {

using schedule::Collective;

const char* name_of(std::uint8_t operation) {
  return schedule::to_string(static_cast<Collective>(operation));
}

}  // namespace

std::string Signature::text() const {
  if (operation >= schedule::collectives().size())
    return "operation " + std::to_string(operation);  // data of a peer is not trusted
  std::string text = name_of(operation);
  if (static_cast<Collective>(operation) == Collective::kBarrier) return text + "()";
  text += "(";
  if (reduces(static_cast<Collective>(operation))) text += std::string(to_string(op)) + ", ";
  text += to_string(dtype);
  if (dims == kPartSizes) return text + ", with sizes of parts)";
  text += "[";
  if (dims <= 4) {
    for (int i = 0; i < dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  } else {
    text += std::to_string(count);
  }
  text += "]";
  const auto c = static_cast<Collective>(operation);
  const bool rooted = c == Collective::kBroadcast || c == Collective::kReduce ||
                      c == Collective::kGather || c == Collective::kScatter;
  return text + (rooted ? ", root " + std::to_string(root) : "") + ")";
}

Signature signature_of(Collective operation, const DirectArgs& args) {
  if (args.dims == kPartSizes)
    return {
        .operation = static_cast<std::uint8_t>(operation), .dtype = args.dtype, .dims = kPartSizes};
  Signature s{static_cast<std::uint8_t>(operation),
              args.is_half ? DType::kF16 : args.dtype,
              args.op,
              1,
              args.root,
              args.count,
              {static_cast<std::int32_t>(args.count)}};
  if (args.shape != nullptr) {
    s.dims = static_cast<std::uint8_t>(args.dims <= 4 ? args.dims : 255);
    for (int i = 0; i < 4; ++i)
      s.shape[i] = i < args.dims ? static_cast<std::int32_t>(args.shape[i]) : 0;
  }
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
