// The group in which the data_parallel() models of a program's group communicate. It has its own
// order of calls, so their hooks do not mix with the program's collectives. If a step is refused,
// this group ends and the program's stays. All models of one group share it, since a loss may use
// several of them. abort() of the program's group ends it, too.
#pragma once

#include <memory>

#include "weft/comm/group.h"

namespace weft::engine::internal {

struct ModelGroup {
  const Group program;    // the group that the program has passed
  const Group gradients;  // the same group if its backend cannot be split

  // The one that living models of `group` use on all ranks, or a new one if it has failed.
  // Collective over `group`.
  static std::shared_ptr<const ModelGroup> of(const Group& group);
};

}  // namespace weft::engine::internal
