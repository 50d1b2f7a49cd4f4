// Which algorithm runs a collective: the one that the cost table says ends first.
//
//   // Once a group, with the same table on all ranks (cost.h).
//   Planner planner(table, {.transport = Transport::kTcp, .world = 8});
//   const Candidate best = planner.choose({.collective = …, .count = count, .element = 4});
//   schedule::make({.collective = …, .algorithm = best.algorithm, .count = count,
//                   .chunk = best.chunk / 4, …});
//
// How a group agrees on the table: rank 0 calls load_table() (calibration.h) and hands text() to
// the others through the store; all, rank 0 too, plan with CostTable::parse(text). Predictions use
// only + - * / and comparisons, so that equal tables give equal choices on unequal processors.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/plan/cost.h"
#include "weft/schedule/schedule.h"

namespace weft::plan {

// Where a collective runs.
struct Place {
  Transport transport = Transport::kTcp;
  int world = 1;
};

// What is asked for: as in schedule::Request, with the size of an element in bytes.
struct Question {
  schedule::Collective collective = schedule::Collective::kAllReduce;
  std::int64_t count = 0;
  std::size_t element = 4;
};

struct Candidate {
  schedule::Algorithm algorithm = schedule::Algorithm::kDirect;
  double seconds = 0;     // predicted
  bool measured = false;  // from curves of this algorithm in this world, not from the model
  // Bytes of a block of a pipelined algorithm, a power of two; 0: the schedule's own.
  std::int64_t chunk = 0;
};

// The blocks that candidates() tries of the algorithm, in bytes; 0 first, and alone for what does
// not go in blocks.
std::span<const std::int64_t> chunks_of(schedule::Algorithm algorithm);

// Any thread may call it.
class Planner {
 public:
  // Throws Error(kInvalidArgument) for a world below 1.
  Planner(CostTable table, Place place);

  // The best algorithm. Sizes are looked at by class, four to a power of two: tens of nanoseconds
  // where the class was asked for before, else what candidates() costs. The same on all ranks that
  // ask the same. Throws Error(kInvalidArgument) for a negative count or an element of no bytes.
  Candidate choose(const Question& question) const;

  // All algorithms that can do it on this transport with what each would cost, the best first, for
  // exactly this size; a pipelined one with each of its chunks that makes 2 to 256 blocks. Below a
  // millisecond in worlds of up to 16, some milliseconds in the largest.
  std::vector<Candidate> candidates(const Question& question) const;

  const CostTable& table() const { return table_; }
  const Place& place() const { return place_; }

 private:
  static constexpr int kCollectives = 9;
  static constexpr int kClasses = 4 * 63;

  CostTable table_;
  Place place_;
  // By collective and class of size: a packed Candidate, 0 where it has not been asked for.
  std::unique_ptr<std::array<std::atomic<std::uint64_t>, kCollectives * kClasses>> cache_;
};

// Seconds that the request takes over the transport: from measured curves where the table has them
// for its algorithm and world; else from the model, corrected by what the model is wrong by in the
// nearest measured world. request.rank is not looked at. Throws what schedule::make() throws.
double predict(const schedule::Request& request, std::size_t element, const CostTable& table,
               Transport transport);

// The model alone: the sum over rounds of the longest that any rank takes (bulk-synchronous: both
// ends of a message are in one round). In worlds above 64 it looks at 16 ranks only.
double model(const schedule::Request& request, std::size_t element, const TransportCost& cost);

}  // namespace weft::plan
