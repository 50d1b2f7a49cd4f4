// The blocks whose backward runs, and the units that they hold gathered.
//
// A block holds its units from the first gradient of its outputs on. It releases a unit when all of
// the unit's parameters have had their gradients, or when all of the block's inputs have had
// theirs. For the thread that runs backward().
#pragma once

#include <list>
#include <memory>
#include <set>
#include <vector>

#include "weft/engine/internal/parameter_gathers.h"

namespace weft::engine::internal {

// One forward of a block, kept until the end of its backward.
struct Run {
  int block = 0;
  int inputs = 0, inputs_left = 0;  // their gradients mark the end of the backward
  std::set<int> held;               // units
  bool is_open() const { return !held.empty(); }
};
using RunPtr = std::shared_ptr<Run>;

class RunningBlocks {
 public:
  explicit RunningBlocks(ParameterGathers& passes) : gathers_(passes) {}

  // The backward of a block begins: gathers its units.
  void open(const RunPtr& run);
  // The gradient of one of its inputs is complete.
  void input_done(const RunPtr& run);
  // The gradients of all parameters of a unit are.
  void close_unit(int unit);
  void close_all();

  // Keeps the units of all blocks gathered until reshard_all().
  void unshard_all(int blocks);
  void reshard_all();

 private:
  void release(Run& run);

  ParameterGathers& gathers_;
  std::list<RunPtr> open_;
  std::vector<int> unsharded_;
};

}  // namespace weft::engine::internal
