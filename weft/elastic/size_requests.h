// The number of ranks that the launcher asks for: `weft scale`, or ranks that can be added again.
#pragma once

#include <vector>

namespace weft::elastic {

// Reads what the launcher has told this rank. One thread uses it.
class SizeRequests {
 public:
  // The latest number of ranks that the launcher asked for; 0: none.
  int ranks();
  // Ranks by the launcher that wait to be added. This rank may not know them yet.
  const std::vector<int>& newcomers() const { return newcomers_; }

 private:
  int ranks_ = 0;
  std::vector<int> newcomers_;
};

}  // namespace weft::elastic
