// Applies a codec to each tensor of a buffer separately, so that no scale covers two tensors: the
// values of neighboring tensors may differ by a factor of a hundred. Small tensors (biases, norms,
// first and last layers) are not compressed: they are few bytes, and a net depends on them most
// (Vogels et al. 2019 do the same with vectors).
#include <cstring>

#include "weft/compress/internal/codecs.h"

namespace weft::compress::internal {
namespace {

class PartsCodec final : public Codec {
 public:
  PartsCodec(std::unique_ptr<Codec> codec, std::int64_t small, std::vector<std::int64_t> tensors)
      : codec_(std::move(codec)), small_(small), tensors_(std::move(tensors)) {}

  std::int64_t bytes(std::int64_t) const override {
    std::int64_t sum = 0;
    for (std::int64_t count : tensors_) sum += count <= small_ ? 4 * count : codec_->bytes(count);
    return sum;
  }

  void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire,
              float* residual) const override {
    for (std::int64_t count : tensors_) {
      const auto tensor = values.first(static_cast<std::size_t>(count));
      values = values.subspan(tensor.size());
      if (count <= small_) {
        std::memcpy(append(wire, 4 * count), tensor.data(), tensor.size_bytes());
        if (residual != nullptr) std::memset(residual, 0, tensor.size_bytes());
      } else {
        codec_->encode(tensor, draw, wire, residual);
      }
      residual += residual != nullptr ? count : 0;
    }
  }

  void add(std::span<const std::byte> wire, const Draw& draw,
           std::span<float> values) const override {
    need(wire, bytes(static_cast<std::int64_t>(values.size())));
    for (std::int64_t count : tensors_) {
      const auto tensor = values.first(static_cast<std::size_t>(count));
      values = values.subspan(tensor.size());
      if (count <= small_) {
        const auto* const numbers = reinterpret_cast<const float*>(wire.data());
        for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] += numbers[i];
      } else {
        codec_->add(wire, draw, tensor);
      }
      wire = wire.subspan(
          static_cast<std::size_t>(count <= small_ ? 4 * count : codec_->bytes(count)));
    }
  }

 private:
  const std::unique_ptr<Codec> codec_;
  const std::int64_t small_;  // largest size of a tensor that is not compressed
  const std::vector<std::int64_t> tensors_;
};

}  // namespace

std::unique_ptr<Codec> make_parts(std::unique_ptr<Codec> codec, std::int64_t small,
                                  std::vector<std::int64_t> tensors) {
  return std::make_unique<PartsCodec>(std::move(codec), small, std::move(tensors));
}

}  // namespace weft::compress::internal
