#include "weft/ps/internal/codecs.h"

#include <cstring>
#include <vector>

#include "weft/compress/spec.h"

namespace weft::ps::internal {
namespace {

constexpr std::size_t kPad = 4;

}  // namespace

compress::Draw draw_of(std::uint64_t seed, const Request& push, std::uint32_t key) {
  return {.seed = seed,
          .step = static_cast<std::int64_t>(push.sequence),
          .unit = key,
          .rank = static_cast<int>(push.worker & 0xffffff)};
}

std::unique_ptr<compress::Codec> codec_of(const std::string& text) {
  const compress::Spec spec = compress::parse(text);
  return spec.kind == compress::Kind::kNone ? nullptr : compress::make_codec(spec);
}

std::string encode_values(const compress::Codec& codec, std::span<const float> values,
                          const compress::Draw& draw, float* residual) {
  std::vector<std::byte> wire;
  wire.reserve(static_cast<std::size_t>(codec.bytes(static_cast<std::int64_t>(values.size()))));
  codec.encode(values, draw, wire, residual);
  const auto size = static_cast<std::uint32_t>(wire.size());
  std::string bytes(sizeof size + (wire.size() + kPad - 1) / kPad * kPad, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  if (!wire.empty()) std::memcpy(bytes.data() + sizeof size, wire.data(), wire.size());
  return bytes;
}

void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values) {
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) throw Error(Errc::kCorrupt, "too few bytes");
  std::memcpy(&size, bytes.data(), sizeof size);
  const std::size_t padded = (std::size_t{size} + kPad - 1) / kPad * kPad;
  if (bytes.size() - sizeof size < padded) throw Error(Errc::kCorrupt, "too few bytes");
  // The codec reads words, so its bytes must be aligned.
  std::vector<std::byte> words(padded);
  if (padded > 0) std::memcpy(words.data(), bytes.data() + sizeof size, padded);
  codec.add(std::span(words).first(size), draw, values);
  bytes.remove_prefix(sizeof size + padded);
}

}  // namespace weft::ps::internal
