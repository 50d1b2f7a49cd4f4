// Chooses the algorithm of a collective: the one that ends first by the cost table.
//
//   // Once per group, with the same table on all ranks (cost_table.h).
//   Planner planner(table, {.transport = Transport::kTcp, .world = 8});
//   const Candidate best = planner.choose({.collective = …, .count = count, .element = 4});
//   schedule::make({.collective = …, .algorithm = best.algorithm, .count = count,
//                   .chunk = best.chunk / 4, …});
//
// How a group agrees on the table: rank 0 calls load_table() (calibration.h) and sends text() to
// the others through the store. All ranks, including rank 0, plan with CostTable::parse(text).
// Predictions use only + - * / and comparisons, so equal tables give equal choices on different
// processors.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/plan/collectives/cost_table.h"
#include "weft/schedule/schedule.h"

namespace weft::plan {

// Where a collective runs.
struct Place {
  Transport transport = Transport::kTcp;
  int world = 1;
};

// The collective to plan, as in schedule::Request, with the size of an element in bytes.
struct Question {
  schedule::Collective collective = schedule::Collective::kAllReduce;
  std::int64_t count = 0;
  std::size_t element = 4;
};

struct Candidate {
  schedule::Algorithm algorithm = schedule::Algorithm::kDirect;
  double seconds = 0;     // Predicted time.
  bool measured = false;  // From a curve measured for this algorithm and world, not from the model.
  // Bytes of a block of a pipelined algorithm, a power of two. 0: the schedule's default.
  std::int64_t chunk = 0;
};

// Block sizes in bytes that candidates() tries for the algorithm. The first is 0, and it is the
// only one if the algorithm is not pipelined.
std::span<const std::int64_t> chunks_of(schedule::Algorithm algorithm);

// Plans the collectives of one place. Any thread may call it.
class Planner {
 public:
  // Throws Error(kInvalidArgument) for a world below 1.
  Planner(CostTable table, Place place);

  // Returns the best algorithm. Sizes are grouped into classes, four per power of two. It takes
  // tens of nanoseconds if the class was asked for before, otherwise as long as candidates(). All
  // ranks that ask the same get the same answer. Throws Error(kInvalidArgument) for a negative
  // count or an element of no bytes.
  Candidate choose(const Question& question) const;

  // Returns all algorithms that support the collective on this transport with their predicted times
  // for exactly this size, best first. A pipelined algorithm comes once with its default and once
  // with each chunk that makes 2 to 256 blocks. Takes less than a millisecond in worlds of up to 16
  // ranks, and some milliseconds in the largest.
  std::vector<Candidate> candidates(const Question& question) const;

  const CostTable& table() const { return table_; }
  const Place& place() const { return place_; }

 private:
  static constexpr int kCollectives = 9;
  static constexpr int kClasses = 4 * 63;

  CostTable table_;
  Place place_;
  // By collective and size class: a packed Candidate, or 0 if it was not asked for yet.
  std::unique_ptr<std::array<std::atomic<std::uint64_t>, kCollectives * kClasses>> cache_;
};

// Seconds that the request takes over the transport. Uses the measured curve if the table has one
// for its algorithm and world. Otherwise uses the model, corrected by the model's error in the
// nearest measured world. request.rank is ignored. Throws what schedule::make() throws.
double predict(const schedule::Request& request, std::size_t element, const CostTable& table,
               Transport transport);

// The model alone: the sum over rounds of the longest time that any rank takes (bulk-synchronous:
// both ends of a message are in one round). In worlds above 64 ranks it looks at only 16 ranks.
double model(const schedule::Request& request, std::size_t element, const TransportCost& cost);

}  // namespace weft::plan
