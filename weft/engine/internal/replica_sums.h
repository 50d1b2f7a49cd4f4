// Sums shards over the replicas of hybrid sharding: the ranks of other groups that have the same
// shard. They send plain or encoded gradients (ShardedOptions::codec).
//
// All ranks start units in one order. start() only begins a sum, so backward continues meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/engine/codec/codec_exchange.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

class ReplicaSums {
 public:
  // Throws Error(kInvalidArgument) for a codec that does not suit the options or the gradients.
  ReplicaSums(const ShardedOptions& options, const std::vector<Param>& params,
              const std::vector<Unit>& units, int rank);

  // Begins to sum a unit's shard, in place. Without effect for a unit without replicas.
  void start(int unit, const at::Tensor& shard);
  // Returns when all of these shards have their sums.
  void finish();
  // A step has used the sums.
  void commit();
  // The sums since commit() do not count. The codecs get back the memory that they had then.
  void rollback();

  // False if a codec has rounded a sum of this rank since rollback() to infinity.
  bool is_in_range() const { return in_range_; }
  // True if the codec has a type of a narrow range, so that is_in_range() may become false.
  bool is_narrow() const { return narrow_; }
  // The memory of the codecs.
  std::vector<std::span<float>> memory();
  // Number of finish() with sums, which are the codec's steps.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = committed_steps_ = steps; }

 private:
  template <class Visit>
  void each_exchange(const Visit& visit);

  const bool narrow_;
  std::vector<std::unique_ptr<CodecExchange>> exchanges_;  // by unit; null: no replicas
  std::vector<CodecExchange*> started_;
  std::int64_t steps_ = 0, committed_steps_ = 0;  // now, and at the last commit()
  bool in_range_ = true;
};

}  // namespace weft::engine::internal
