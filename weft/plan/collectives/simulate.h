// Simulates a collective step by step over the links of a topology, without running it. Gives its
// time, its bytes on each level, and its critical path.
//
// Each rank does the steps of schedule::make(), by the executor's rule: all messages of a round
// begin when the rank reaches the round. The rank goes on when all of them have ended and their
// data is added. A message of n bytes occupies both its ranks for latency + n / bandwidth
// (Hockney's alpha + beta n). It occupies the ports of the two parts that the link joins (hosts or
// single ranks: see schedule::Link) for n / bandwidth each. A port carries one message after the
// other: earlier rounds first, then in the order in which their senders were ready. Bytes go out
// and come in at the same time. Adding n bytes takes n / reduction of the link over which they
// came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::plan {

struct LevelTraffic {
  std::int64_t messages = 0;
  double bytes = 0;
  double busiest_port = 0;  // Bytes that leave the busiest part.
};

// One message of the critical path. Its sender was ready at `begin`. Its data had arrived and was
// added at `end`.
struct Hop {
  int round = 0;
  int from = 0;
  int to = 0;
  int level = 0;  // Level of the topology.
  double bytes = 0;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  // Count that was simulated. With by_symmetry it is rounded up to a multiple of the world size.
  std::int64_t count = 0;
  double seconds = 0;
  int rounds = 0;
  int last_rank = 0;                 // Rank that ended last.
  std::vector<LevelTraffic> levels;  // By level of the topology.
  // True if the ranks' schedules differ only by a rotation of ranks. Then the schedules of a few
  // ranks stand for all.
  bool by_symmetry = false;

  // Chain of events that ends with last_rank. Its time is the sum of latency, wire, waiting and
  // reduction.
  struct {
    std::vector<std::int64_t> messages;  // By level.
    // Seconds. `waiting`: for ports that carried other messages.
    double latency = 0, wire = 0, waiting = 0, reduction = 0;
    // In order of time. Empty if the simulation has more than 100,000 messages.
    std::vector<Hop> hops;
  } critical;
};

// Simulates request.algorithm over request.topology, or over Topology::flat(world). `element` is
// the size of an element in bytes. request.rank is ignored. A ring of 10,000 ranks takes some
// seconds. Throws what schedule::make() throws. Throws kInvalidArgument for a schedule in shared
// memory (kDirect), and for one of more than 2e8 steps that has no symmetry.
Simulation simulate(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan
