// Parameters that several blocks have under one name (an embedding and the head's weight): their
// gradients are summed, so that they stay one. Some of them may be on one rank.
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
  // By block: the names of its tied parameters, and they. Collective; gives all the values of the
  // first block that has them. Throws Error(kInvalidArgument) where shapes or types differ.
  Tied(const Group& group, const std::map<int, std::map<std::string, at::Tensor>>& blocks);

  // Before backward: sets aside the gradients that are there already, which are sums.
  void begin();
  // After it: sums those that are new over all that have the parameter. Collective.
  void sum() const;
  // Whether somebody else counts this parameter.
  bool is_copy(const at::Tensor& parameter) const;

 private:
  struct One {
    std::string name;
    std::vector<at::Tensor> mine;  // by rising block
    std::optional<Group> ranks;    // none: they are all here
    bool counted_here = false;     // the first block is here
    at::Tensor before;
  };
  std::vector<One> all_;
};

}  // namespace weft::parallel::internal
