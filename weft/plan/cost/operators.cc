#include "weft/plan/cost/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::plan {
namespace {

// Tile sizes of CUTLASS and cuBLAS with their rates relative to the largest: smaller tiles reuse
// less of what they load (NVIDIA: Matrix multiplication background, section "Tile quantization").
struct Tile {
  double rows, columns, rate;
};
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.95}, {256, 64, 0.85},
                           {64, 256, 0.85}, {128, 64, 0.80}, {64, 128, 0.80},  {64, 64, 0.65},
                           {32, 128, 0.45}, {128, 32, 0.45}, {32, 32, 0.25}};
// Matrix units of TPUs are 128 x 128.
constexpr Tile kSystolic[] = {{128, 128, 1.0}, {8, 128, 0.0625}};

// Filling and draining the pipeline of a tile, in elements of k.
constexpr double kTileOverhead = 96;
// Waves above which a partly empty last wave is spread by the scheduler.
constexpr double kSmoothWaves = 8;
constexpr double kWorkspace = 4;  // Bytes of a partial sum (split of k).

constexpr double kLaunch = 4e-6;     // Seconds of a kernel on a GPU.
constexpr double kLaunchCpu = 3e-6;  // Of an operator on a CPU, without libtorch's dispatch.
// Attention over the ranks of cp works on smaller blocks and merges their results.
constexpr double kPartedAttention = 0.70;
// Of the peak, FP32 products on vector units (oneDNN); on GPUs (cuBLAS) relative to the share that
// 16-bit products reach.
constexpr double kFloatShare = 0.95, kFloatOverHalf = 1.05;
// Training in fp4 keeps some layers in 16 bits (NVIDIA: Pretraining large language models with
// NVFP4, arXiv 2509.25149). The rows of GB200 and GB300 in megatron_bridge imply this share.
constexpr double kNotFp4 = 0.12;
// Conversions to fp4 also rotate (Hadamard) and round at random: traffic over that of fp8.
constexpr double kCastFp4 = 2;
constexpr double kUnknownShare = 0.83;   // Of the peak, where no best product was measured.
constexpr double kNoTensorCores = 0.35;  // Share of the FP32 peak of products without tensor cores.

// Rates of kernels for sizes that are no multiple of 8 elements (16 bytes), relative to aligned
// ones.
double alignment_rate(double smallest) {
  const auto n = static_cast<std::int64_t>(smallest);
  if (n % 8 == 0) return 1;
  return n % 4 == 0 ? 0.55 : n % 2 == 0 ? 0.35 : 0.2;
}

bool is_half(Precision p) { return p == Precision::kFp16 || p == Precision::kBf16; }

}  // namespace

DeviceModel::DeviceModel(const Accelerator& accelerator, Precision precision,
                         const Software& software, const Calibration& constants)
    : accelerator_(accelerator),
      precision_(precision),
      software_(software),
      fitted_(constants.of(accelerator.generation)),
      bandwidth_(accelerator.bandwidth * (accelerator.rates.empty() ? fitted_.memory : 1)),
      launch_(accelerator.generation == Generation::kCpu ? kLaunchCpu : kLaunch) {}

// The measured best product bounds the rate of 16-bit and FP8 products; FP32 products on vector
// units come close to their peak.
double DeviceModel::rate(Precision precision) const {
  const double top = peak(accelerator_, precision);
  if (precision == Precision::kFp32 && accelerator_.generation == Generation::kCpu)
    return top * kFloatShare;
  if (precision == Precision::kFp32) return top * std::min(1.0, kFloatOverHalf * fitted_.matmul);
  const double half = std::max(peak(accelerator_, Precision::kBf16), 1.0);
  const double share = accelerator_.achievable > 0 ? accelerator_.achievable / half : kUnknownShare;
  return top * share * fitted_.matmul;
}

double DeviceModel::memory(double bytes, int kernels) const {
  return bytes / bandwidth_ + launch_ * kernels;
}

double DeviceModel::tiled(const Product& p, double rate) const {
  const double units = accelerator_.units;
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Tile& tile) {
    const double tiles = std::ceil(p.m / tile.rows) * std::ceil(p.n / tile.columns) * p.batch;
    for (const double parts : {1.0, 2.0, 4.0, 8.0, 16.0}) {
      if (parts > 1 && p.k / parts < 512) break;
      const double waves = tiles * parts / units;
      const double rounds = waves < kSmoothWaves ? std::ceil(waves) : waves + 0.5;
      double seconds = rounds * 2 * tile.rows * tile.columns * (p.k / parts + kTileOverhead) /
                       (rate / units * tile.rate);
      if (parts > 1) seconds += p.m * p.n * p.batch * kWorkspace * 2 * parts / bandwidth_;
      best = std::min(best, seconds);
    }
  };
  if (accelerator_.generation == Generation::kTpu) {
    for (const Tile& tile : kSystolic) consider(tile);
  } else {
    for (const Tile& tile : kTiles) consider(tile);
  }
  return best;
}

// Rate of the measured products nearest in shape, weighted by their distance.
double DeviceModel::measured(const Product& p) const {
  double weights = 0, sum = 0;
  for (const MatmulRate& r : accelerator_.rates) {
    const double dm = std::log(r.m / p.m), dn = std::log(r.n / p.n), dk = std::log(r.k / p.k);
    const double d = dm * dm + dn * dn + dk * dk;
    const double weight = 1 / (d * d + 1e-6);
    weights += weight;
    sum += weight * std::log(2 * r.m * r.n * r.k / r.seconds);
  }
  return 2 * p.m * p.n * p.k * p.batch / std::exp(sum / weights);
}

double DeviceModel::product(const Product& p, Precision precision, bool batched) const {
  const double e = precision == Precision::kFp4                                     ? 0.5
                   : precision == Precision::kFp8                                   ? 1
                   : precision == Precision::kFp32 || precision == Precision::kTf32 ? 4
                                                                                    : 2;
  if (!accelerator_.rates.empty()) return measured(p);
  const double traffic = (p.m * p.k + p.k * p.n + p.m * p.n) * e * p.batch / bandwidth_;
  if (accelerator_.generation == Generation::kCpu)
    return std::max(2 * p.m * p.n * p.k * p.batch / rate(precision), traffic) + launch_;
  double seconds = tiled(p, rate(precision));
  if (is_half(precision) && accelerator_.generation != Generation::kTpu) {
    const double smallest = std::min(alignment_rate(p.n), alignment_rate(p.k));
    if (smallest < 1 && batched) {
      // Batched products of unaligned sizes run without tensor cores.
      seconds =
          2 * p.m * p.n * p.k * p.batch / (peak(accelerator_, Precision::kFp32) * kNoTensorCores);
    } else {
      seconds /= smallest;
    }
  }
  return std::max(seconds, traffic) + launch_;
}

OperatorTime DeviceModel::product_time(const Operator& op) const {
  Precision p = op.low_precision || precision_ < Precision::kFp8 ? precision_ : Precision::kBf16;
  if (op.in_float) p = Precision::kFp32;
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n),
               k = static_cast<double>(op.k), batch = static_cast<double>(op.batch);
  const bool batched = !op.has_weights;
  OperatorTime t;
  const auto seconds = [&](const Product& sizes) {
    const double most = product(sizes, p, batched);
    if (p != Precision::kFp4) return most;
    return (1 - kNotFp4) * most + kNotFp4 * product(sizes, Precision::kBf16, batched);
  };
  t.forward = seconds({m, n, k, batch});
  t.backward_input = op.no_input_gradient ? 0 : seconds({m, k, n, batch});
  const double other = op.frozen ? 0 : seconds({k, n, m, batch});
  (op.has_weights ? t.backward_weight : t.backward_input) += other;
  if (p >= Precision::kFp8) {  // inputs, weights and gradients are scaled and converted
    const bool one = software_.compiled || software_.caches_weights;
    const double bytes =
        (software_.compiled ? 3 : software_.cast_bytes) * (p == Precision::kFp4 ? kCastFp4 : 1);
    const double weights = software_.caches_weights ? 0 : n * k;
    t.forward += memory(batch * (m * k + weights) * bytes, one ? 2 : 6);
    t.backward_input += memory(batch * m * n * bytes, one ? 1 : 3);
  }
  return t;
}

OperatorTime DeviceModel::convolution_time(const Operator& op) const {
  const double e = element_bytes(precision_);
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n),
               k = static_cast<double>(op.k), batch = static_cast<double>(op.batch);
  const double traffic = (op.input + op.weights + op.output) * e;
  // Winograd's F(2x2, 3x3) needs 2.25 times fewer products; its transforms cost about half of the
  // gain (Lavin and Gray 2015). Only FP32 units profit.
  const bool fewer = op.winograd && precision_ == Precision::kFp32 && op.k >= 9 * 16 &&
                     accelerator_.generation != Generation::kTpu &&
                     accelerator_.generation != Generation::kCpu;
  const double gain = fewer ? 1.5 : 1;
  const auto seconds = [&](const Product& p) {
    double compute = accelerator_.generation == Generation::kCpu || !accelerator_.rates.empty()
                         ? product(p, precision_, false)
                         : tiled(p, rate(precision_)) / gain;
    return std::max(compute, traffic / bandwidth_) + launch_;
  };
  OperatorTime t;
  t.forward = seconds({m, n, k, batch});
  t.backward_input = op.no_input_gradient ? 0 : seconds({m, k, n, batch});
  t.backward_weight = seconds({k, n, m, batch});
  return t;
}

// Rate of fused attention with heads of 64 features, relative to 128. Products halve, exponentials
// do not: on Hopper 0.7 (Shah et al. 2024, figure 5), half on Blackwell, whose products are twice
// as fast and its exponentials are not.
double DeviceModel::narrow_rate() const {
  if (!software_.new_attention) return 0.85;
  return accelerator_.generation == Generation::kBlackwell ? 0.5 : 0.7;
}

// Fused attention. A causal mask halves the work, which is counted here for all decoders. Backward
// computes the scores again: five products instead of two.
OperatorTime DeviceModel::attention_time(const Operator& op) const {
  const Attention& share = attention_of(accelerator_.generation, software_.new_attention);
  const double causal = 0.5, width = op.k < 128 ? narrow_rate() : 1;
  const double flops = forward_flops(op) * causal;
  if (accelerator_.generation == Generation::kCpu || !accelerator_.rates.empty()) {
    const double seconds = product({static_cast<double>(op.m), static_cast<double>(op.n),
                                    static_cast<double>(op.k), static_cast<double>(op.batch)},
                                   precision_, false);
    return {2 * seconds, 5 * seconds, 0};
  }
  const Precision p = precision_ >= Precision::kFp8 ? Precision::kBf16 : precision_;
  const double top = rate(p) / fitted_.matmul * (op.parts > 1 ? kPartedAttention : 1);
  return {flops / (top * share.forward * width) + launch_,
          2.5 * flops / (top * share.backward * width) + 2 * launch_, 0};
}

OperatorTime DeviceModel::time(const Operator& op) const {
  if (op.kind == OperatorKind::kMeasured)
    return {op.forward_seconds, op.backward_seconds / 2, op.backward_seconds / 2};
  OperatorTime t = tuned(op);
  const bool half = element_bytes(precision_) < 4;
  double share = half ? software_.kernel_share : software_.float_share;
  if (op.kind == OperatorKind::kConvolution) share *= software_.convolution_share;
  t.forward /= share;
  t.backward_input /= share;
  t.backward_weight /= share;
  return t;
}

OperatorTime DeviceModel::tuned(const Operator& op) const {
  switch (op.kind) {
    case OperatorKind::kMatmul: return product_time(op);
    case OperatorKind::kConvolution: return convolution_time(op);
    case OperatorKind::kAttention: return attention_time(op);
    case OperatorKind::kMeasured:
    case OperatorKind::kMemory: break;
  }
  return {memory(op.forward_bytes, op.forward_kernels),
          memory(op.backward_bytes, op.backward_kernels), 0};
}

BlockTime time_of(const ModelBlock& block, const DeviceModel& device) {
  BlockTime sum;
  for (const Operator& op : block.operators) {
    const OperatorTime t = device.time(op);
    sum.all += t;
    if (op.again) sum.again += t.forward;
  }
  return sum;
}

}  // namespace weft::plan
