// One buffer of a symbolic run. Records for each element which ranks' elements are combined in it.
#pragma once

#include <bitset>
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/schedule/proof.h"

namespace weft::schedule::internal {

using Ranks = std::bitset<kMaxProvedWorld>;

// Elements [begin, end): element begin + i is the combination of element source + i of the inputs
// of the ranks in `from`, in an order that `order` identifies.
struct Run {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t source = 0;
  std::uint64_t order = 0;
  Ranks from;
};
// Sorted and without overlap. Neighbors that continue each other are joined.
using Runs = std::vector<Run>;

// Runs of a rank's unmodified input.
Runs input_runs(int rank, std::int64_t count);

// Returns left + right, element by element. Both begin at 0 and have the same length. Throws
// Error(kInternal) if a rank would count twice, or if elements from different places of the inputs
// would be added.
Runs combine(const Runs& left, const Runs& right);

class Cells {
 public:
  explicit Cells(Runs runs = {}) : runs_(std::move(runs)) {}
  // Returns the contents of [begin, begin + count), with offsets from 0. Throws Error(kInternal) if
  // a part of it was never written.
  Runs read(std::int64_t begin, std::int64_t count) const;
  void write(std::int64_t begin, const Runs& runs);

 private:
  Runs runs_;
};

}  // namespace weft::schedule::internal
