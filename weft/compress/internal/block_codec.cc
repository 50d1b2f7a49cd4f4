// int8, int4 and sign: a scale for each block, then the codes (weft/kernels/encode.h).
//
//   8, 4 bits     error of a number: at most half a quantum, scale / 2; with random rounding: less
//                 than a quantum, zero in expectation
//   1 bit         ||x - C(x)||^2 = (1 - ||x||_1^2 / (n ||x||_2^2)) ||x||^2 for each block
//                 (Karimireddy et al. 2019)
#include "weft/base/random.h"
#include "weft/compress/internal/codecs.h"
#include "weft/kernels/encode.h"

namespace weft::compress::internal {
namespace {

class BlockCodec final : public Codec {
 public:
  BlockCodec(int bits, std::int64_t block, bool stochastic)
      : bits_(bits), block_(block), stochastic_(stochastic) {}

  std::int64_t bytes(std::int64_t count) const override {
    return codes_at(count) + round_up(kernels::codes_of(count, block_, bits_), 4);
  }

  void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire,
              float* residual) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    std::byte* const out = append(wire, bytes(count));
    kernels::QuantizeArgs args{values.data(),
                               count,
                               block_,
                               bits_,
                               reinterpret_cast<float*>(out),
                               reinterpret_cast<std::uint8_t*>(out + codes_at(count)),
                               residual};
    args.stochastic = stochastic_;
    if (stochastic_) args.key = key_of(draw);
    kernels::quantize(args);
  }

  void add(std::span<const std::byte> wire, const Draw&, std::span<float> values) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    need(wire, bytes(count));
    kernels::dequantize_add({reinterpret_cast<const float*>(wire.data()),
                             reinterpret_cast<const std::uint8_t*>(wire.data() + codes_at(count)),
                             count, block_, bits_},
                            values.data());
  }

 private:
  std::int64_t codes_at(std::int64_t count) const {
    return kernels::scales_of(count, block_) * static_cast<std::int64_t>(sizeof(float));
  }

  static std::uint32_t key_of(const Draw& draw) {
    const std::uint64_t index = static_cast<std::uint64_t>(draw.step) << 16 |
                                static_cast<std::uint64_t>(draw.rank & 0xffff);
    return Random(draw.seed, draw.unit, index).next_u32();
  }

  const int bits_;
  const std::int64_t block_;
  const bool stochastic_;
};

}  // namespace

std::unique_ptr<Codec> make_block(int bits, std::int64_t block, bool stochastic) {
  return std::make_unique<BlockCodec>(bits, block, stochastic);
}

}  // namespace weft::compress::internal
