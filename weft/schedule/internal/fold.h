// Folding, for worlds that are not a power of two. Each surplus rank (guest) is folded into a
// neighbor (its host). A core of 2^k ranks runs the algorithm, and the guests get the result at the
// end (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH,
// 2005, section 4.5).
#pragma once

#include <bit>

namespace weft::schedule::internal {

// Among the first 2 * surplus ranks, each odd rank is the guest of the even rank before it. All
// ranks that are not guests form the core.
struct Fold {
  explicit Fold(int world)
      : core(static_cast<int>(std::bit_floor(static_cast<unsigned>(world)))),
        surplus(world - core) {}

  int core;     // Number of ranks in the core, a power of two.
  int surplus;  // Number of guests.

  bool guest(int rank) const { return rank < 2 * surplus && rank % 2 == 1; }
  bool host(int rank) const { return rank < 2 * surplus && rank % 2 == 0; }
  // A rank's place in the core (not for guests), and the inverse.
  int place(int rank) const { return rank < 2 * surplus ? rank / 2 : rank - surplus; }
  int rank_at(int place) const { return place < surplus ? 2 * place : place + surplus; }
  int levels() const { return std::bit_width(static_cast<unsigned>(core)) - 1; }
};

}  // namespace weft::schedule::internal
