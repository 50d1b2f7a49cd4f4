// The codecs, one file each. See codec.h.
#pragma once

#include "weft/compress/codec.h"

namespace weft::compress::internal {

std::unique_ptr<Codec> make_cast(DType type);
std::unique_ptr<Codec> make_block(int bits, std::int64_t block, bool stochastic);
std::unique_ptr<Codec> make_top_k(double share);
std::unique_ptr<Codec> make_threshold(float magnitude);
// `scaled`: the expectation of the decoded values is the gradient; otherwise the drawn values are
// unscaled. `tensors`: sizes of the consecutive tensors in a buffer. Empty: one tensor.
std::unique_ptr<Codec> make_random_k(double share, bool scaled,
                                     const std::vector<std::int64_t>& tensors = {});
// Applies `codec` to each tensor separately. Tensors of at most `small` numbers are not compressed.
std::unique_ptr<Codec> make_parts(std::unique_ptr<Codec> codec, std::int64_t small,
                                  std::vector<std::int64_t> tensors);

// Extends the buffer by `bytes`.
inline std::byte* append(std::vector<std::byte>& wire, std::int64_t bytes) {
  const std::size_t before = wire.size();
  wire.resize(before + static_cast<std::size_t>(bytes));
  return wire.data() + before;
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Throws Error(kCorrupt) if the encoding is shorter.
void need(std::span<const std::byte> wire, std::int64_t bytes);

}  // namespace weft::compress::internal
