#include "weft/compress/codec.h"

#include <string>

#include "weft/base/error.h"
#include "weft/compress/internal/codecs.h"

namespace weft::compress {

std::unique_ptr<Codec> make_codec(const Spec& spec) {
  const auto block = static_cast<std::int64_t>(spec.amount);
  switch (spec.kind) {
    case Kind::kBf16: return internal::make_cast(DType::kBF16);
    case Kind::kF16: return internal::make_cast(DType::kF16);
    case Kind::kInt8: return internal::make_block(8, block, spec.stochastic);
    case Kind::kInt4: return internal::make_block(4, block, spec.stochastic);
    case Kind::kSign: return internal::make_block(1, block, false);
    case Kind::kTopK: return internal::make_top_k(spec.amount);
    case Kind::kRandomK: return internal::make_random_k(spec.amount, spec.memory == Memory::kNone);
    case Kind::kThreshold: return internal::make_threshold(static_cast<float>(spec.amount));
    default: break;
  }
  throw Error(Errc::kInvalidArgument, "make_codec: \"" + to_string(spec) +
                                          "\" does not encode single numbers; use make_reducer");
}

namespace internal {

void need(std::span<const std::byte> wire, std::int64_t bytes) {
  if (static_cast<std::int64_t>(wire.size()) >= bytes) return;
  throw Error(Errc::kCorrupt, "a peer's encoded gradient has " + std::to_string(wire.size()) +
                                  " bytes instead of " + std::to_string(bytes) +
                                  "; check that all ranks use the same codec");
}

}  // namespace internal
}  // namespace weft::compress
