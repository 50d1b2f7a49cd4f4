// Values through a codec, as bytes: the same for clients and servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "weft/compress/codec.h"
#include "weft/ps/internal/request.h"

namespace weft::ps::internal {

// The codec of a text as in Options. nullptr: "none". Throws as compress::parse().
std::unique_ptr<compress::Codec> codec_of(const std::string& text);
// Bytes of values through a codec are preceded by their number and by the step of the draw, which
// take kCodecHead bytes, and padded to 4. The draw of randomk is different in each step; steps are
// below 2^32.
inline constexpr std::size_t kCodecHead = 16;
std::string encode_values(const compress::Codec& codec, std::span<const float> values,
                          const compress::Draw& draw, float* residual);
// Adds the values of the next such encoding, and removes it from the bytes. The step of the draw is
// that in the bytes. Throws Error(kCorrupt).
void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values);
// The draw of a piece's values, on which client and server agree. `step`: the number of encodings
// of this piece before. With a number that other commands advance too, randomk could leave out the
// same elements each time.
compress::Draw draw_of(std::uint64_t seed, const Request& request, std::uint32_t key,
                       std::uint32_t step = 0);

}  // namespace weft::ps::internal
