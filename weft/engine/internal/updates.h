// The optimiser of a rank's shards: its state lies as the shards do, in memory or in a mapped file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/engine/internal/mapped_file.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"
#include "weft/engine/update_rule.h"

namespace weft::parallel::internal {

class Updates {
 public:
  Updates(OptimizerSpec spec, const std::vector<Param>& params, const std::vector<Unit>& units, const ShardedOptions& options);

  // Updates this rank's masters from its gradients, of the parameters that are `used`, and counts their steps.
  void step(std::vector<Unit>& units, int rank, const std::vector<bool>& used);

  OptimizerSpec& spec() { return spec_; }
  const OptimizerSpec& spec() const { return spec_; }
  // By unit and array of state_names(): a shard, of the masters' type. None for units that are not trained.
  std::vector<at::Tensor>& state(std::size_t unit) { return state_[unit]; }
  std::int64_t& steps(int param) { return steps_[static_cast<std::size_t>(param)]; }
  std::int64_t bytes() const { return bytes_; }

 private:
  OptimizerSpec spec_;
  const ParamRules rules_;
  std::vector<std::int64_t> sizes_, steps_;  // by parameter
  std::unique_ptr<MappedFile> file_;         // null: in memory. Outlives the tensors
  std::vector<std::vector<at::Tensor>> state_;
  std::int64_t bytes_ = 0;
};

}  // namespace weft::parallel::internal
