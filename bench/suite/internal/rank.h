// Runs in the ranks of weft: joins the group, and answers the commands of the harness
// (participant.h).
#pragma once

#include <functional>
#include <string>

#include "bench/suite/internal/answer.h"
#include "weft/comm/group.h"

namespace weft::cli::bench_internal {

struct RankOptions {
  std::string impl;          // name in answers
  std::string meeting_file;  // file for the rendezvous of the ranks; must not exist before
  std::string transport = "auto";
  bool shared_allocator = true;  // allocate tensors in memory that the other ranks can read
  // Binds each rank to its own core if there are enough, as mpirun does by default. Otherwise the
  // scheduler may leave ranks that the harness has woken together on one core, as long as they wait
  // for each other.
  bool bind_to_cores = false;
};

// Executes a command on every rank. Returns the answer without braces and impl: `"us":[1,2]`. Only
// rank 0's answer is used.
using CarryOut = std::function<std::string(const Message& command)>;

// Joins the group of `ranks`, calls make(), and executes the commands of stdin until it ends; the
// answers go to stdout. The first exception of a rank ends the group: rank 0 answers
// {"impl":…,"error":…}, and the exit code is 1.
int serve_rank(int rank, int ranks, const RankOptions& options,
               const std::function<CarryOut(comm::Group)>& make);

// A barrier of the group. If the ranks share memory, it is no collective call of the group.
void meet(const comm::Group& group);

}  // namespace weft::cli::bench_internal
