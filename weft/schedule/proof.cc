// Symbolic runs the schedules and checks each step (symbolic.h). Here the results are compared with
// the definition of the collective. A run of elements in a result has three symbols:
//
//   from     set of the ranks that have contributed; combine() refuses a rank that is there already
//   source   first element of their inputs; at the same distance from `begin` in all runs
//   order    hash of the tree of operands
//
// So `from` and `source` say that the sum is right. Equal `order` on all ranks says that they have
// the same bits. The comparison of orders needs equal cuts into runs. This holds since neighbors
// that continue each other are always joined (cells.h).
#include "weft/schedule/proof.h"

#include <algorithm>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/internal/symbolic.h"

namespace weft::schedule {
namespace {

using internal::Ranks;
using internal::Run;
using internal::Runs;
using internal::Symbolic;

// Contents that block `index` of a rank's result (or the whole result) must have: the ranks whose
// elements it holds, and the first element of their input.
struct Expected {
  Ranks from;
  std::int64_t source = 0;
};

Expected expected_block(const Request& q, int rank, int index) {
  Ranks all;
  for (int r = 0; r < q.world; ++r) all.set(r);
  const Ranks root = Ranks().set(q.root);
  const Ranks sender = Ranks().set(index);
  switch (q.collective) {
    case Collective::kReduceScatter: return {all, rank * q.count};
    case Collective::kAllGather:
    case Collective::kGather: return {sender, 0};
    case Collective::kBroadcast: return {root, 0};
    case Collective::kScatter: return {root, rank * q.count};
    case Collective::kAllToAll: return {sender, rank * q.count};
    default: return {all, 0};
  }
}

void check_result(const Request& q, int rank, const Runs& runs, std::int64_t length) {
  const int blocks = q.count == 0 ? 0 : static_cast<int>(length / q.count);
  const internal::Cells result(runs);
  for (int b = 0; b < blocks; ++b) {
    const Expected expected = expected_block(q, rank, b);
    for (const Run& run : result.read(b * q.count, q.count)) {
      WEFT_CHECK(run.from == expected.from,
                 "rank " + std::to_string(rank) + " ends with " + std::to_string(run.from.count()) +
                     " contributions, or not the right ones, to element " +
                     std::to_string(run.begin) + " of block " + std::to_string(b));
      WEFT_CHECK(run.source - run.begin == expected.source,
                 "rank " + std::to_string(rank) + " ends with the wrong elements in block " +
                     std::to_string(b));
    }
  }
}

bool same_order(const Runs& a, const Runs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Run& x, const Run& y) {
    return x.begin == y.begin && x.end == y.end && x.order == y.order;
  });
}

void check_results(const Request& q, std::span<const Schedule> schedules,
                   const Symbolic& symbolic) {
  for (int rank = 0; rank < q.world; ++rank) {
    if (q.collective == Collective::kBarrier) {
      WEFT_CHECK(static_cast<int>(symbolic.heard(rank).count()) == q.world,
                 "rank " + std::to_string(rank) + " leaves the barrier before all have come");
      continue;
    }
    const Runs result = symbolic.output(rank);
    check_result(q, rank, result, schedules[rank].output);
    WEFT_CHECK(q.collective != Collective::kAllReduce || same_order(result, symbolic.output(0)),
               "ranks 0 and " + std::to_string(rank) + " add in different orders");
  }
}

void check_cost(const Request& q, Cost measured) {
  const Cost promised = cost(q);
  WEFT_CHECK(measured.rounds == promised.rounds && measured.sent == promised.sent,
             "takes " + std::to_string(measured.rounds) + " rounds and sends " +
                 std::to_string(measured.sent) + " elements; promised are " +
                 std::to_string(promised.rounds) + " and " + std::to_string(promised.sent));
}

void check_lengths(const Request& request, std::span<const Schedule> schedules) {
  WEFT_CHECK(static_cast<int>(schedules.size()) == request.world, "not one schedule for each rank");
  for (int rank = 0; rank < request.world; ++rank) {
    Request own = request;
    own.rank = rank;
    const Schedule& schedule = schedules[rank];
    WEFT_CHECK(schedule.rank == rank && schedule.world == request.world &&
                   schedule.collective == request.collective,
               "not the schedule of rank " + std::to_string(rank));
    WEFT_CHECK(schedule.input == input_count(own) && schedule.output == output_count(own),
               "rank " + std::to_string(rank) + " has the wrong lengths of input or output");
  }
}

}  // namespace

void prove(const Request& request, std::span<const Schedule> schedules, bool same_array) {
  WEFT_REQUIRE(request.world <= kMaxProvedWorld, "a world of " + std::to_string(request.world) +
                                                     " ranks is more than can be proved, " +
                                                     std::to_string(kMaxProvedWorld));
  check_lengths(request, schedules);
  Symbolic symbolic(schedules, same_array);
  symbolic.run();
  check_results(request, schedules, symbolic);
  check_cost(request, symbolic.cost());
}

void prove(const Request& request) {
  std::vector<Schedule> schedules;
  Request own = request;
  for (own.rank = 0; own.rank < own.world; ++own.rank) schedules.push_back(make(own));
  prove(request, schedules, /*same_array=*/false);
  const bool can_share = std::any_of(schedules.begin(), schedules.end(), [](const Schedule& s) {
    return s.in_place && s.input == s.output && s.input > 0;
  });
  if (can_share) prove(request, schedules, /*same_array=*/true);
}

}  // namespace weft::schedule
