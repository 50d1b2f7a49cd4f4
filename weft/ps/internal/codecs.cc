#include "weft/ps/internal/codecs.h"

#include <cstring>
#include <vector>

#include "weft/compress/spec.h"

namespace weft::ps::internal {
namespace {

constexpr std::size_t kPad = 4;

// Before the bytes of a codec.
struct Head {
  std::uint64_t size = 0;
  std::uint32_t step = 0, unused = 0;
};
static_assert(sizeof(Head) == kCodecHead);

}  // namespace

compress::Draw draw_of(std::uint64_t seed, const Request& request, std::uint32_t key,
                       std::uint32_t step) {
  return {
      .seed = seed, .step = step, .unit = key, .rank = static_cast<int>(request.worker & 0xffffff)};
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
  const Head head{.size = wire.size(), .step = static_cast<std::uint32_t>(draw.step)};
  std::string bytes(sizeof head + (wire.size() + kPad - 1) / kPad * kPad, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  if (!wire.empty()) std::memcpy(bytes.data() + sizeof head, wire.data(), wire.size());
  return bytes;
}

void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values) {
  Head head;
  if (bytes.size() < sizeof head) throw Error(Errc::kCorrupt, "too few bytes");
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::size_t left = bytes.size() - sizeof head;
  if (head.size > left) throw Error(Errc::kCorrupt, "too few bytes");
  const std::size_t padded = (head.size + kPad - 1) / kPad * kPad;
  if (padded > left) throw Error(Errc::kCorrupt, "too few bytes");
  // The codec reads words, so its bytes must be aligned.
  std::vector<std::byte> words(padded);
  if (padded > 0) std::memcpy(words.data(), bytes.data() + sizeof head, padded);
  compress::Draw drawn = draw;
  drawn.step = head.step;
  codec.add(std::span(words).first(head.size), drawn, values);
  bytes.remove_prefix(sizeof head + padded);
}

}  // namespace weft::ps::internal
