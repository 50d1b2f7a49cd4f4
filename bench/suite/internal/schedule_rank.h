// Ranks without tensors, which run single schedules and what a cost table is made of. Commands:
//
//   {"do":"collective","op","algorithm","count","chunk",…}   a schedule of float32, counts as in
//                                                            schedule::Request
//   {"do":"ping_pong","bytes",…}          half of the way there and back between ranks 0 and 1;
//                                         direct: reading a peer's memory
//   {"do":"swap","bytes",…}               ranks 0 and 1 send to each other at once
//   {"do":"burst","bytes","messages",…}   rank 0 sends so many messages at once, rank 1 receives
//                                         them and answers with one byte
//   {"do":"reduce","bytes",…}, {"do":"copy","bytes",…}        in each rank's own memory, all at
//                                                             once
//
// with "iterations" samples, of "block" calls each. Answer: "us", by sample, of the slowest rank.
#pragma once

#include <memory>
#include <string>

#include "bench/suite/internal/participant.h"
#include "weft/plan/cost.h"

namespace weft::cli::bench_internal {

// `folder` is where they find each other; nobody else uses it. Transports: direct, shm and tcp
// (over loopback).
std::shared_ptr<Participant> start_schedule_ranks(plan::Transport transport, int ranks,
                                                  const std::string& folder,
                                                  const Signals& signals);

}  // namespace weft::cli::bench_internal
