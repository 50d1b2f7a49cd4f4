// Who reads which sample when: a pure function of (seed, epoch, position), so that it can be
// resumed anywhere and with another world.
//
//   epoch e   permutation(size, seed, e) = 7 2 9 4 0 5 1 8 3 6          size 10, batch 4
//   global    |  batch 0  |  batch 1  | 2 |
//   2 ranks   | r0  | r1  | r0  | r1  |0|1|                       contiguous shares, sizes differ
//                                                                 by at most 1
//
// The global batches are the same whatever the world; each sample occurs exactly once an epoch.
// Ranks of unequal speed get unequal shares by weights (balance.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/data/share.h"

namespace weft::data {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

// The share of `rank` in `count` things: [count·rank/world, count·(rank+1)/world). Sizes differ by
// at most 1, and the shares of a smaller world that divides this one are unions of these.
Range share_of(std::int64_t count, int rank, int world);
// The same by weights, one a rank: within one of count·weight/sum each. Equal weights give equal
// shares, though not always those above.
Range share_of(std::int64_t count, int rank, const std::vector<double>& weights);

enum class Order {
  kShuffled,  // batches of `batch` samples of a permutation, each split over the ranks: training
  // blocks of `batch` samples in order, block b to rank b mod world: evaluation. The same blocks
  // whatever the world.
  kSequential,
};

struct SamplerOptions {
  std::int64_t size = 0;   // samples in the data set
  std::int64_t batch = 1;  // kShuffled: samples of a global batch; kSequential: samples of a block
  std::uint64_t seed = 0;
  Order order = Order::kShuffled;
  int rank = 0;
  int world = 1;
};

// Where the next batch starts. All that a checkpoint must keep; it says nothing about rank or
// world.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // samples of this epoch already handed out, over all ranks
  bool operator==(const SamplerState&) const = default;
};

// Not thread-safe. O(size) memory and time once an epoch for the permutation.
class Sampler {
 public:
  // Throws Error(kInvalidArgument) for an empty data set, a batch below 1, or a rank outside the
  // world.
  explicit Sampler(SamplerOptions options);

  // This rank's part of the next batch; nullopt at the end of the epoch, from where the next call
  // starts the next epoch. Training: all ranks get the same number of batches. Evaluation: a rank
  // without a block ends earlier.
  std::optional<Share> next();

  SamplerState state() const { return state_; }
  // Throws Error(kInvalidArgument) for an epoch or position outside the data set.
  void set_state(SamplerState state);

  // kShuffled: how batches are split from the next one on; empty: evenly. All ranks set the same
  // weights before the same batch, else samples are lost or taken twice. Throws
  // Error(kInvalidArgument) unless there is one weight a rank, none negative, some positive.
  void set_weights(std::vector<double> weights);

  // Batches of a whole epoch, for this rank.
  std::int64_t batches() const;
  const SamplerOptions& options() const { return options_; }

 private:
  std::optional<Share> next_shuffled();
  std::optional<Share> next_block();
  void end_epoch();

  SamplerOptions options_;
  SamplerState state_;
  std::vector<double> weights_;
  std::vector<std::int64_t> order_;  // the permutation of epoch order_epoch_
  std::int64_t order_epoch_ = -1;
};

}  // namespace weft::data
