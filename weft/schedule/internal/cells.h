// One buffer of a symbolic run: which ranks' elements are combined in each of its elements.
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
// Sorted, without overlap, neighbors that continue each other joined.
using Runs = std::vector<Run>;

// The runs of a rank's untouched input.
Runs input_runs(int rank, std::int64_t count);

// left + right, element by element; both begin at 0 and have the same length. Throws
// Error(kInternal) where a rank would count twice or different places of the inputs would be added.
Runs combine(const Runs& left, const Runs& right);

class Cells {
 public:
  explicit Cells(Runs runs = {}) : runs_(std::move(runs)) {}
  // What [begin, begin + count) holds, counted from 0. Throws Error(kInternal) where something in
  // it was never written.
  Runs read(std::int64_t begin, std::int64_t count) const;
  void write(std::int64_t begin, const Runs& runs);

 private:
  Runs runs_;
};

}  // namespace weft::schedule::internal
