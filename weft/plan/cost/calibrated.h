// Calibrated constants of the planner: all of them stand in calibrated.cc, each with its source.
//
// At most two constants of a generation of hardware are fitted to published measurements: the share
// of the achievable rate that large matrix products reach in training, and the share of the memory
// bandwidth that elementwise kernels reach. All others come from documents.
#pragma once

#include <array>

#include "weft/plan/cluster/cluster.h"

namespace weft::plan {

struct Fitted {
  double matmul = 0.9;    // Share of the achievable rate.
  double memory = 0.8;    // Share of the memory bandwidth.
  const char* rows = "";  // Rows that the two were fitted to; empty: not fitted.
};

struct Attention {
  // Shares of the achievable rate of matrix products that fused attention reaches, head width 128.
  double forward = 0.5;
  double backward = 0.4;
  const char* source = "";
};

// NCCL's constants in microseconds, by algorithm (tree, ring) and protocol (LL, LL128, Simple).
struct NcclLatencies {
  std::array<std::array<double, 3>, 2> base, nvlink, pci, net;
};

// Shares of their bandwidth that NCCL's trees reach, by protocol, and by the logarithm of
// bytes / 64, rounded down. 1 for larger messages.
using NcclTreeShares = std::array<std::array<double, 22>, 3>;

struct Calibration {
  std::array<Fitted, 8> fitted;  // By Generation.
  const Fitted& of(Generation g) const { return fitted[static_cast<std::size_t>(g)]; }
};

// The constants of calibrated.cc.
const Calibration& calibration();
// `specialized`: kernels written for Hopper and Blackwell (FlashAttention-3, cuDNN 9).
const Attention& attention_of(Generation generation, bool specialized = false);
const NcclLatencies& nccl_latencies();
const NcclTreeShares& nccl_tree_shares();

}  // namespace weft::plan
