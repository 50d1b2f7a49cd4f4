// How a rank gets its batches: its part of each batch, or, with an asynchronous strategy, the next
// part when it is ready.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/data/loader.h"
#include "weft/observe/step_timer.h"
#include "weft/strategy/shared_batches.h"
#include "weft/train/internal/rank_data.h"

namespace weft::train::internal {

class TrainBatches {
 public:
  struct Settings {
    data::SamplerOptions sampling;  // batch, seed and least
    int prefetch = 0;
    std::unique_ptr<strategy::SharedBatches> shared;  // see shared()
  };
  TrainBatches(Group world, const data::Source& source, const RankData& rank_data,
               Settings settings);

  // The next batch.
  data::Batch next(observe::StepTimer& timer);
  // Throws if batches of the epoch are left.
  void end_epoch();
  // Position in the data. Call between two steps; all ranks must call set_position().
  data::SamplerState position() const { return shared_ ? position_ : loader_.state(); }
  void set_position(const data::SamplerState& position) {
    position_ = position;
    loader_.restore(position);
  }
  // Weights of the replicas' shares.
  void set_weights(std::vector<double> weights) { loader_.set_weights(std::move(weights)); }

  // Where workers take batches when they are ready (asynchronous strategies). Null elsewhere.
  strategy::SharedBatches* shared() const { return shared_.get(); }
  // With shared(): forgets that none was left.
  void rewind() { loader_.restore(position_); }
  // With shared(), after rewind(): gives out the batches of the steps [begin, end) of the epoch.
  // Collective.
  void give_out(std::int64_t begin, std::int64_t end);
  // With shared(): takes the batch that next() returns. Returns its step within the epoch; nullopt:
  // none is left. Only ranks of one worker wait for each other.
  std::optional<std::int64_t> take();
  // With shared(): waits until all workers are done with the batches that were given out. Returns
  // the step at which they end. Collective.
  std::int64_t meet();

 private:
  data::Loader make_loader(const data::Source& source, const RankData& rank_data,
                           const Settings& settings) const;

  const Group world_;
  const std::int64_t samples_, batch_;  // per epoch, and per step
  const std::unique_ptr<strategy::SharedBatches> shared_;
  data::Loader loader_;
  // With shared_ only.
  data::SamplerState position_;       // at the last give_out() or meet()
  std::int64_t begun_ = 0;            // step within the epoch of the last give_out()
  std::optional<data::Batch> taken_;  // by take()
  std::chrono::nanoseconds taking_{0};
};

}  // namespace weft::train::internal
