// The state that a run continues from: the newest checkpoint, or copies in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/optim/noise_scale.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class Resumption {
 public:
  // `options` and `config` must outlive it.
  Resumption(const Options& options, const Config& config, Group world)
      : options_(options), config_(config), world_(std::move(world)) {}

  // If the run is resumed, takes `state` from memory, or loads the newest checkpoint in `folder`,
  // which is used on rank 0 only. Collective.
  void open(std::optional<Saved> state, const std::string& folder);
  const std::optional<Saved>& saved() const { return saved_; }
  // The state was in memory.
  bool recovers() const { return recovers_; }
  // Steps of the damaged checkpoints that open() has passed over.
  const std::vector<std::int64_t>& damaged() const { return damaged_; }
  // Options for a learner of this many replicas. From a checkpoint, the batch and the rate go on as
  // changes of the number of ranks have left them, and a pass is not larger than before. Where the
  // batch is kept, the passes that a planner has chosen stay (`is_planned`). Throws
  // Error(kInvalidArgument) if the configuration asks for another batch than that of the
  // checkpoint.
  Options learner_options(int replicas, bool is_planned) const;

  struct At {
    RunCount count;
    optim::NoiseScale::State noise;
    Best::State best;
    std::int64_t evaluated_step = -1;  // see Progressed
    LeftOut left_out;
    Callbacks::Requests asked;
  };
  // Loads the state into the learner, and forgets it. nullopt without one. Collective.
  std::optional<At> restore(Learner& learner);

 private:
  bool resizes() const;
  bool keeps_form(int replicas) const;

  const Options& options_;
  const Config& config_;
  const Group world_;
  std::optional<Saved> saved_;  // until it is restored
  std::vector<std::int64_t> damaged_;
  bool recovers_ = false;
};

}  // namespace weft::train::internal
