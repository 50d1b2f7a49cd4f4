// Updates this rank's shards of the weights by the optimizer's rule.
//
// Shared weights that are updated in place have no copy with which they could be compared. So each
// update compares this rank's part of them with what the last update wrote (written.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/unit_memory.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/internal/whole_updates.h"
#include "weft/engine/internal/written.h"

namespace weft::engine::internal {

class ShardUpdates {
 public:
  // All of it outlives this object.
  struct Context {
    const Group& group;
    const std::vector<Param>& params;
    const UnitMemory& memory;
    Updates& updates;
    WholeUpdates* whole;  // null unless the rule needs whole tensors
    const ModuleWatch& watch;
  };
  explicit ShardUpdates(const Context& of);

  // Updates the parameters that a rank has `used`. `gradients`: Gradients::shards(). Throws
  // Error(kInvalidArgument) if the program has written to shared weights since the last update.
  // Collective for rules that need whole tensors.
  void update(const std::vector<at::Tensor>& gradients, const std::vector<bool>& used);

  // Between two steps: throws as update() does.
  void check_written();
  // Shared weights are right as they are now.
  void note_written();
  // The caller has changed the masters of this unit.
  void forget_written(std::size_t unit) { written_[unit] = {}; }

 private:
  bool is_written_once(const Unit& unit) const;
  std::vector<Piece> pieces_of(const Unit& unit) const;
  void update_piece(const Piece& piece, const std::byte* gradient, WrittenCheck& check) const;
  WrittenCheck unchanged(const Unit& unit) const;
  void end(const Unit& unit, const WrittenCheck& check, Written& written) const;

  const Context of_;
  std::vector<Written> written_;  // by unit: of this rank's part of its weights
};

}  // namespace weft::engine::internal
