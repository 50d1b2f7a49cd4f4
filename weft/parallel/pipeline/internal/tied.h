// Parameters that several blocks share under one name (an embedding and the head's weight). Their
// gradients are summed, so that the copies stay equal. Several copies may be on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

class Tied {
 public:
  // By block: its tied parameters by name. Collective: copies the values of the first block that
  // has a parameter to all others. Throws Error(kInvalidArgument) if shapes or types differ.
  Tied(const Group& group, const std::map<int, std::map<std::string, at::Tensor>>& blocks);

  // Call before backward: sets aside existing gradients, which are sums already.
  void begin();
  // Call after backward: sums the new gradients over all copies of the parameter. Without one on
  // any rank, all copies have those of before, or none: optimizers skip a parameter without a
  // gradient. Collective.
  void sum() const;
  // Ends the waits of the ranks that have a parameter of this rank. See Group::abort().
  void abort(const Error& why) const;
  // True if another block counts this parameter (for norms).
  bool is_copy(const at::Tensor& parameter) const;

 private:
  struct One {
    std::string name;
    std::vector<at::Tensor> mine;  // by ascending block
    std::optional<Group> ranks;    // none: all copies are on this rank
    bool counted_here = false;     // the first block is on this rank
    at::Tensor before;
  };
  std::vector<One> all_;
};

}  // namespace weft::parallel::internal
