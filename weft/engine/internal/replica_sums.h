// Sums of shards over the replicas that have the same shard (ShardedOptions::replicas): as they are, or through a codec. They leave as
// soon as they are there, while backward goes on, in one order on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/engine/codec_exchange.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::parallel::internal {

// With whom a unit's shards are summed; null: nobody.
inline const std::optional<Group>& replicas_of(const Unit& unit, const ShardedOptions& options) {
  return unit.apart ? options.apart->replicas : options.replicas;
}

class ReplicaSums {
 public:
  struct Subject {
    const std::vector<Param>& params;
    const std::vector<Unit>& units;
    const ShardedOptions& options;
    int rank;  // whose shards these are, in the group that shares them
  };
  // Throws Error(kInvalidArgument) for a codec that gradients cannot go through.
  explicit ReplicaSums(Subject subject);
  // `shard` holds this rank's values, and is in use until finish() returns.
  void start(int unit, const at::Tensor& shard);
  // All that was started holds its sum.
  void finish();

  // Of the codec, on this rank, in place.
  std::vector<std::span<float>> memory();
  // finish() with something started, so far; a codec's steps.
  std::int64_t& steps() { return steps_; }

 private:
  const Subject subject_;
  std::vector<std::unique_ptr<CodecExchange>> exchanges_;  // by unit; null: it has no replicas
  std::vector<CodecExchange*> under_way_;                  // in their order
  std::int64_t steps_ = 0;
};

}  // namespace weft::parallel::internal
