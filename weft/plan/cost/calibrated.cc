#include "weft/plan/cost/calibrated.h"

namespace weft::plan {
namespace {

// Fitted: 2 constants for each generation. `weft plan validate --fit` repeats the fit.
constexpr Calibration kCalibration = {{{
    {0.85, 0.80, ""},  // other
    {0.92, 0.74, ""},  // pascal
    {0.91, 0.80, ""},  // volta
    {0.90, 0.80, ""},  // ampere
    {0.70, 0.84, ""},  // hopper
    {0.72, 0.82, ""},  // blackwell
    {0.70, 0.75, ""},  // tpu
    {0.80, 0.70, ""},  // cpu
}}};

// Dao: FlashAttention-2, 2023, figures 4 to 7 (head width 128, causal), over the achievable rates
// of matrix products in bench/published/hardware_accelerators.csv: A100 193 and 165 of 271.2
// TFLOP/s, H100 395 and 326 of 794.5 TFLOP/s.
constexpr Attention kAmpere = {0.71, 0.61, "FlashAttention-2, figures 4 and 5: A100"};
constexpr Attention kHopper = {0.50, 0.41, "FlashAttention-2, figure 7: H100"};
constexpr Attention kVolta = {0.42, 0.34, "memory-efficient attention (xFormers) on V100"};
// Shah et al.: FlashAttention-3, 2024 (abstract): 1.5 to 2.0 times FlashAttention-2 on H100. Taken:
// 1.6 and 1.65, on Blackwell too. pytorch/benchmark #2391: 614 TFLOP/s forward, 8192 positions.
constexpr Attention kSpecialized = {0.80, 0.68, "FlashAttention-3: H100"};
constexpr Attention kOther = {0.50, 0.41, "as FlashAttention-2 on H100"};

// bench/published/nccl_tuning_constants.csv: NCCL src/graph/tuning.cc, commit 01afd20 (about 2.8).
constexpr NcclLatencies kLatencies = {
    .base = {{{4.4, 4.4, 0}, {3.6, 10.0, 8.4}}},
    .nvlink = {{{0.52, 1.2, 28}, {0.47, 1.9, 3.4}}},
    .pci = {{{1.0, 1.9, 28}, {1.0, 2.5, 5.7}}},
    .net = {{{5.0, 8.5, 50}, {2.7, 4.0, 9.6}}},
};

// The same file: treeCorrectionFactor.
constexpr NcclTreeShares kTreeShares = {{
    {1,   1,   1,   1,   0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6,
     0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1,   1,   1},
    {1,   1,   1,   1,   1,   0.9, 0.8, 0.8, 0.8, 0.7, 0.6,
     0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1},
    {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6,
     0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9},
}};

}  // namespace

const Calibration& calibration() { return kCalibration; }

const Attention& attention_of(Generation generation, bool specialized) {
  if (specialized && (generation == Generation::kHopper || generation == Generation::kBlackwell))
    return kSpecialized;
  switch (generation) {
    case Generation::kAmpere: return kAmpere;
    case Generation::kHopper: return kHopper;
    case Generation::kVolta: return kVolta;
    default: return kOther;
  }
}

const NcclLatencies& nccl_latencies() { return kLatencies; }

const NcclTreeShares& nccl_tree_shares() { return kTreeShares; }

}  // namespace weft::plan
