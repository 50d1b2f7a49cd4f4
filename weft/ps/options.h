// What a parameter server does with the pushes of the workers: update rule, staleness bound,
// codecs. All workers of a server give the same options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/optim/update_rule.h"

namespace weft::ps {

// Values of Options::staleness.
inline constexpr int kSync = 0;
inline constexpr int kAsync = -1;

struct Options {
  // Update of the values by pushed gradients: sgd, rmsprop, adagrad, adam or lion. None: pushes are
  // deltas, and are added.
  std::optional<optim::UpdateRule> rule = kernels::Sgd{.lr = 0.1};

  // kSync: pushes wait until every worker has pushed for the same step. Then one update is made by
  //   their mean, in the order of the workers' numbers (of deltas: their sum).
  // s >= 1: stale synchronous parallel (Ho et al. 2013). Each push is an update of its own, and a
  //   pull waits until the slowest worker is at most s steps behind.
  // kAsync: each push is an update of its own, and no pull waits.
  int staleness = kSync;

  // DC-ASGD (Zheng et al. 2017, arXiv:1609.08326): lambda of the compensation
  //   g + lambda g * g * (w - w_pulled)
  // of a gradient g that was computed at the values w_pulled, where the server now has w. Needs a
  // rule and a staleness other than kSync. Costs a copy of the values for each worker. 0: off.
  double delay_compensation = 0;
  // DC-ASGD-a: lambda is divided by the root of the moving mean of g * g.
  bool adaptive_compensation = false;

  // Codec of pushes, as in weft/compress/spec.h, with error feedback in the worker. All but
  // powersgd and auto.
  std::string push_codec = "none";
  // Codec of pulls: none, bf16 or f16.
  std::string pull_codec = "none";

  bool operator==(const Options&) const;
};

// Throws Error(kInvalidArgument) that names the option.
void check(const Options& options);

// A named tensor of float32, and its number of elements.
struct TensorSize {
  std::string name;
  std::int64_t count = 0;
  bool operator==(const TensorSize&) const = default;
};

// The part [first, first + count) of a tensor that one shard has.
struct Piece {
  std::uint32_t tensor = 0;  // index in the list of tensors
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const Piece&) const = default;
};

// Pieces of a shard. The tensors lie in one line, in the order of the list, which is cut into
// `shards` ranges of nearly equal length at multiples of 16 elements. A shard may be empty.
std::vector<Piece> pieces_of(const std::vector<TensorSize>& tensors, std::uint32_t shard,
                             std::uint32_t shards);

}  // namespace weft::ps
