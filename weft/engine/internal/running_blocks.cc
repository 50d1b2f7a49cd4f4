#include "weft/engine/internal/running_blocks.h"

#include <iterator>
#include <utility>

namespace weft::engine::internal {

void RunningBlocks::open(const RunPtr& run) {
  passes_.enter(run->block, Passes::Direction::kBackward);
  const auto& units = passes_.units_of(run->block);
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
  for (auto run = open_.begin(); run != open_.end();) {
    if ((*run)->held.erase(unit) > 0) passes_.release(unit);
    run = (*run)->is_open() ? std::next(run) : open_.erase(run);
  }
}

void RunningBlocks::close_all() {
  for (const RunPtr& run : std::exchange(open_, {})) release(*run);
}

void RunningBlocks::release(Run& run) {
  for (const int unit : std::exchange(run.held, {})) passes_.release(unit);
}

void RunningBlocks::keep_all(int blocks) {
  if (!kept_.empty()) return;
  for (int block = blocks - 1; block >= 0; --block) {
    passes_.enter(block, Passes::Direction::kBackward);
    const auto& units = passes_.units_of(block);
    kept_.insert(kept_.end(), units.begin(), units.end());
  }
  passes_.finish(Passes::Direction::kBackward);
}

void RunningBlocks::release_kept() {
  for (const int unit : std::exchange(kept_, {})) passes_.release(unit);
}

}  // namespace weft::engine::internal
