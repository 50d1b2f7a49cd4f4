// Sampler: chooses the samples of each rank in each batch. The choice is a pure function of (seed,
// epoch, position), so that a run can resume at any batch and with another world.
//
//   epoch e   permutation(size, seed, e) = 7 2 9 4 0 5 1 8 3 6          size 10, batch 4
//   global    |  batch 0  |  batch 1  | 2 |
//   2 ranks   | r0  | r1  | r0  | r1  |0|1|                       contiguous shares, sizes differ
//                                                                 by at most 1
//
// The global batches are the same for every world. Each sample occurs exactly once per epoch. Ranks
// of unequal speed can get unequal shares by weights (balance.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "weft/data/share.h"

namespace weft::data {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

// Returns the share of `rank` in `count` elements: [count·rank/world, count·(rank+1)/world). Sizes
// differ by at most 1. If a smaller world divides this one, its shares are unions of these.
Range share_of(std::int64_t count, int rank, int world);
// The same by weights, one per rank. The size of a share differs from count·weight/sum by at most
// 1. Equal weights may give other shares than the function above.
Range share_of(std::int64_t count, int rank, const std::vector<double>& weights);

enum class Order {
  // For training: batches of `batch` samples of a permutation. Each batch is split over the ranks.
  kShuffled,
  // For evaluation: blocks of `batch` samples in order. Rank b mod world gets block b. The blocks
  // are the same for every world.
  kSequential,
};

struct SamplerOptions {
  std::int64_t size = 0;   // Samples in the data set.
  std::int64_t batch = 1;  // Samples of a global batch (kShuffled) or of a block (kSequential).
  std::uint64_t seed = 0;
  Order order = Order::kShuffled;
  // kShuffled: smallest share of a batch. If a batch has too few samples for all ranks, only the
  // first ranks get a share of it, and one rank gets all of a batch that is smaller. Batch norms
  // need 2 samples.
  std::int64_t least = 1;
  int rank = 0;
  int world = 1;
  // Number of neighboring ranks that compute together, as those of a worker do. It divides `world`.
  int group = 1;
  // A part of a global batch: that of `rank`. Batches are counted from the position of the state.
  struct Draw {
    std::int64_t batch = 0;
    int rank = 0;
  };
  // kShuffled: says which part next() returns, for ranks that take batches when they are ready;
  // nullopt: none is left. The position of the state stays then, and epochs do not end. Null: the
  // part of `rank` in the next batch. May throw.
  std::function<std::optional<Draw>()> draw = nullptr;
};

// Position of the next batch, the only state that a checkpoint must keep. It is the same on all
// ranks and in every world.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // Samples of this epoch already returned, over all ranks.
  bool operator==(const SamplerState&) const = default;
};

// Not thread-safe. The permutation takes O(size) memory, and O(size) time once per epoch.
class Sampler {
 public:
  // Throws Error(kInvalidArgument) for an empty data set, a batch below 1, a rank outside the
  // world, or a group that does not divide it.
  explicit Sampler(SamplerOptions options);

  // Returns this rank's part of the next batch, or nullopt at the end of the epoch; the call after
  // that starts the next epoch. kShuffled: all ranks get the same number of batches. kSequential: a
  // rank without a last block ends earlier.
  std::optional<Share> next();

  SamplerState state() const { return state_; }
  // Throws Error(kInvalidArgument) for an epoch or position outside the data set.
  void set_state(SamplerState state);

  // Sets the weights by which batches are split from the next one on. Empty: evenly. All ranks must
  // set the same weights before the same batch, otherwise samples are lost or used twice. Throws
  // Error(kInvalidArgument) for kSequential, and unless there is one finite weight per rank, none
  // negative and at least one positive.
  void set_weights(std::vector<double> weights);

  // Number of batches of a whole epoch on this rank.
  std::int64_t batches() const;
  const SamplerOptions& options() const { return options_; }

 private:
  std::optional<Share> next_shuffled();
  std::optional<Share> next_drawn();
  void make_order();
  Range part_of(std::int64_t size, int rank) const;
  Share share_of_batch(std::int64_t first, int rank) const;
  std::optional<Share> next_block();
  void end_epoch();

  SamplerOptions options_;
  SamplerState state_;
  std::vector<double> weights_;
  std::vector<std::int64_t> order_;  // Permutation of epoch order_epoch_.
  std::int64_t order_epoch_ = -1;
};

}  // namespace weft::data
