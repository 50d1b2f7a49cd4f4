// Two events end the use of a unit, and either may come first or be missing: all of its parameters
// have their gradients (close_unit), or all inputs of the block have theirs (input_done). Frozen
// parameters have no hook, and a first block often has no input with a gradient. `held` names the
// units that are still to be released, so each is released once. The end of backward() releases the
// rest (close_all).
#include "weft/engine/internal/running_blocks.h"

#include <iterator>
#include <utility>

namespace weft::engine::internal {

void RunningBlocks::open(const RunPtr& run) {
  gathers_.enter(run->block, ParameterGathers::Direction::kBackward);
  const auto& units = gathers_.units_of(run->block);
  run->held.insert(units.begin(), units.end());
  run->inputs_left = run->inputs;
  open_.push_back(run);
}

void RunningBlocks::input_done(const RunPtr& run) {
  if (--run->inputs_left > 0) return;
  release(*run);
  open_.remove(run);
}

void RunningBlocks::close_unit(int unit) {
  // A block that ran several times has several runs. Autograd adds the gradients of all of them
  // before its hook, so no open run needs the unit any more.
  for (auto run = open_.begin(); run != open_.end();) {
    if ((*run)->held.erase(unit) > 0) gathers_.release(unit);
    run = (*run)->is_open() ? std::next(run) : open_.erase(run);
  }
}

void RunningBlocks::close_all() {
  for (const RunPtr& run : std::exchange(open_, {})) release(*run);
}

void RunningBlocks::release(Run& run) {
  for (const int unit : std::exchange(run.held, {})) gathers_.release(unit);
}

void RunningBlocks::unshard_all(int blocks) {
  if (!unsharded_.empty()) return;
  for (int block = blocks - 1; block >= 0; --block) {
    gathers_.enter(block, ParameterGathers::Direction::kBackward);
    const auto& units = gathers_.units_of(block);
    unsharded_.insert(unsharded_.end(), units.begin(), units.end());
  }
  gathers_.finish(ParameterGathers::Direction::kBackward);
}

void RunningBlocks::reshard_all() {
  for (const int unit : std::exchange(unsharded_, {})) gathers_.release(unit);
}

}  // namespace weft::engine::internal
