#include "weft/parallel/compose/internal/model_times.h"

#include <utility>

#include "weft/observe/position/position.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel::internal {

using schedule::pipeline::Work;

engine::DataParallelBase::Times ModelTimes::take_engine_times() {
  engine::DataParallelBase::Times all;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    const auto mine = stage.sharded->take_times();
    all.work += mine.work;
    all.wait += mine.wait;
  }
  return all;
}

double ModelTimes::counted() const {
  return times_.forward + times_.backward + times_.communication + times_.update;
}

void ModelTimes::begin_batch() {
  batch_began_ = Clock::now();
  counted_before_ = counted();
}

void ModelTimes::end_batch() {
  take_engine_times();  // the wait since the last backward is part of the rest
  times_.communication += seconds_since(batch_began_) - (counted() - counted_before_);
}

ParallelModel::Times ModelTimes::take() {
  ParallelModel::Times times = std::exchange(times_, {});
  if (c_.mesh.world().size() == 1) times.communication = 0;
  return times;
}

void ModelTimes::begin_action(const schedule::pipeline::Action& action) {
  began_ = Clock::now();
  observe::set_activity(action.work == Work::kForward ? observe::Activity::kForward
                                                      : observe::Activity::kBackward);
  span_.emplace("stage", schedule::pipeline::describe(action).c_str());
}

void ModelTimes::end_action(const schedule::pipeline::Action& action) {
  span_.reset();
  wait_for(c_.plan.device);  // its time counts here
  const auto spent = take_engine_times();
  (action.work == Work::kForward ? times_.forward : times_.backward) +=
      seconds_since(began_) - spent.wait - spent.work;
  times_.communication += spent.wait;
  times_.update += spent.work;
}

}  // namespace weft::parallel::internal
