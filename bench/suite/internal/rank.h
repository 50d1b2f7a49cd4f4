// What runs in weft's own ranks: joining the group, and answering the harness's commands
// (participant.h).
#pragma once

#include <functional>
#include <string>

#include "bench/suite/internal/answer.h"
#include "weft/comm/group.h"

namespace weft::cli::bench_internal {

struct RankOptions {
  std::string impl;          // as it stands in answers
  std::string meeting_file;  // where the ranks find each other; one that did not exist before
  std::string transport = "auto";
  bool shared_allocator = true;  // tensors come from memory that the peers can read
  // Each rank on a core of its own where there are enough, as mpirun does by default. Else the
  // scheduler may leave ranks that the harness has woken together on one core for as long as they
  // wait for each other.
  bool bind_to_cores = false;
};

// Carries a command out on every rank and gives the answer, without braces and impl: `"us":[1,2]`.
// Rank 0's is the one that counts.
using CarryOut = std::function<std::string(const Message& command)>;

// Joins the group of `ranks`, makes what carries out commands, and serves it from stdin to stdout
// until stdin ends. The first exception of a rank ends the group: rank 0 answers
// {"impl":…,"error":…}, and the exit code is 1.
int serve_rank(int rank, int ranks, const RankOptions& options,
               const std::function<CarryOut(comm::Group)>& make);

// A barrier of the group's host, without a collective call where its memory is shared.
void meet(const comm::Group& group);

}  // namespace weft::cli::bench_internal
