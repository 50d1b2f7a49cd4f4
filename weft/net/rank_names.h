// The numbers in the job of the ranks of a group. Positions (observe/position) name ranks by them.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weft::net {

class RankNames {
 public:
  // `job_ranks`: by rank of the group. Empty: the same numbers.
  explicit RankNames(std::vector<int> job_ranks = {}) : job_ranks_(std::move(job_ranks)) {}
  // -1 for -1.
  int of(int rank) const {
    return rank < 0 || job_ranks_.empty() ? rank : job_ranks_[static_cast<std::size_t>(rank)];
  }

 private:
  std::vector<int> job_ranks_;
};

}  // namespace weft::net
