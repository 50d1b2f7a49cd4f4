// Ranks without tensors, which run single schedules, and measure the entries of a cost table.
// Commands:
//
//   {"do":"collective","op","algorithm","count","chunk",…}   a schedule of float32, with counts as
//                                                            in schedule::Request
//   {"do":"ping_pong","bytes",…}          half of a round trip between ranks 0 and 1; direct: reads
//                                         a peer's memory
//   {"do":"swap","bytes",…}               ranks 0 and 1 send to each other at the same time
//   {"do":"burst","bytes","messages",…}   rank 0 sends this many messages at once; rank 1 receives
//                                         them and answers with one byte
//   {"do":"reduce","bytes",…}             each rank reduces in its own memory, at the same time
//   {"do":"copy","bytes",…}               each rank copies in its own memory, at the same time
//
// Each command also has "iterations", the number of samples, and "block", the calls of a sample.
// The answer is "us": for each sample, the time of the slowest rank.
#pragma once

#include <memory>
#include <string>

#include "bench/suite/internal/participant.h"
#include "weft/plan/collectives/cost_table.h"

namespace weft::cli::bench_internal {

// Starts the ranks. They use `folder` for their rendezvous; nothing else may use it. Transports:
// direct, shm and tcp (over loopback).
std::shared_ptr<Participant> start_schedule_ranks(plan::Transport transport, int ranks,
                                                  const std::string& folder,
                                                  const Signals& signals);

}  // namespace weft::cli::bench_internal
