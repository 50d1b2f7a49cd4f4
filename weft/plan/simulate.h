// A collective played step by step over the links of a topology, without running it: how long it
// takes, where its bytes go, and which chain of events nothing could have shortened.
//
// What a rank does is what schedule::make() says; the executor's rule holds: a round's messages all
// begin when the rank comes to the round, and it goes on when they all have ended and what they
// brought is added. A message of n bytes over a link keeps both its ranks for latency + n /
// bandwidth (Hockney's alpha + beta n), and the ports of the two parts that the link joins (hosts,
// or single ranks: see schedule::Link) for n / bandwidth each, one message after the other in the
// order in which their ranks were ready, those of earlier rounds first. Bytes go out and come in at
// the same time. Adding n bytes up takes n / reduction of the link that they came over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::plan {

struct LevelTraffic {
  std::int64_t messages = 0;
  double bytes = 0;
  double busiest_port = 0;  // bytes that leave the busiest part
};

// One message of the critical path: it was ready at `begin` and had arrived and been added up at
// `end`.
struct Hop {
  int round = 0;
  int from = 0;
  int to = 0;
  int level = 0;  // of the topology
  double bytes = 0;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  std::int64_t count =
      // what was simulated: where the schedule is played by its symmetry the count is rounded up to
      // full parts
      0;
  double seconds = 0;
  int rounds = 0;
  int last_rank = 0;                 // the one that ended last
  std::vector<LevelTraffic> levels;  // by level of the topology
  bool by_symmetry =
      // ranks are alike but for a turn of the numbers, and were played from the schedules of a few
      false;

  // The chain that ends with last_rank: its time is the sum of these.
  struct {
    std::vector<std::int64_t> messages;  // by level
    // Seconds; waiting: for ports that carried something else.
    double latency = 0, wire = 0, waiting = 0, reduction = 0;
    std::vector<Hop> hops;  // where the simulation has at most 100,000 messages; in order of time
  } critical;
};

// Plays request.algorithm over request.topology, or over flat(world) with its default link.
// request.rank is not looked at. A ring of 10,000 ranks takes some seconds. Throws what
// schedule::make() throws; kInvalidArgument for a schedule in shared memory (kDirect) and for one
// too long to hold that has no symmetry (2e8 steps).
Simulation simulate(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan
