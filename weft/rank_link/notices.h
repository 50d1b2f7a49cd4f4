// Notices: what the launcher has told this rank while it runs. Any thread may ask for it.
//
//   launcher ══ Link ══ notices() ──► elastic::SizeRequests   the ranks that the job shall have
//                                ──► net/tcp                 ranks whose node is lost
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/rank_link/link.h"

namespace weft::rank_link {

class Notices {
 public:
  // Reads what comes over `link`, and nobody else does; null: there are no notices.
  explicit Notices(Link* link) : link_(link) {}

  // The number of ranks that the launcher asks for, and the ranks that wait to be added. 0: it has
  // not asked for a number yet.
  std::pair<int, std::vector<int>> wanted();

  // Number of losses told so far. A group keeps this number when it is made, for lost_since().
  std::uint64_t losses();
  // The ranks, by the launcher, of the nodes whose loss was told after the first `losses` ones.
  std::vector<int> lost_since(std::uint64_t losses);

 private:
  void read();  // with mutex_

  std::mutex mutex_;
  Link* const link_;
  std::pair<int, std::vector<int>> wanted_;
  std::vector<int> lost_;
};

// The notices of this process.
Notices& notices();

}  // namespace weft::rank_link
