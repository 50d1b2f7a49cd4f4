// Values through a codec, as bytes: the same for clients and servers.
#pragma once

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
// Bytes of a push's tensor through a codec are preceded by their number, and padded to 4.
std::string encode_values(const compress::Codec& codec, std::span<const float> values,
                          const compress::Draw& draw, float* residual);
// Adds the values of the next such encoding, and removes it from the bytes. Throws
// Error(kCorrupt).
void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values);
// The draw of a push: worker and client agree on it.
compress::Draw draw_of(std::uint64_t seed, const Request& push, std::uint32_t key);

}  // namespace weft::ps::internal
