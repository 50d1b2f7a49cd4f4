// Finds the peers of bench/peers on this machine, and the command that starts each.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::cli::bench_internal {

struct PeerProgram {
  std::string impl;  // its name in answers
  std::vector<std::string> argv;
  std::vector<std::string> environment;
};

struct Peers {
  std::vector<PeerProgram> found;
  std::vector<std::string> missing;  // messages such as "openmpi: weft_peer_mpi has not been built"
};

// Searches the folders above the running program for bench/peers (sources and built programs) and
// for a Python that has torch. `tcp`: Open MPI uses TCP, also on one host.
Peers collective_peers(int ranks, bool tcp);
// torch_training.py, with a Python that has torch. `deepspeed`: with one that has deepspeed, too;
// WEFT_DEEPSPEED_PYTHON is tried first.
Peers training_peers(int ranks, bool deepspeed);
// torchrun with torch_first_step.py.
Peers first_step_peers(int ranks);

// The path of `name` in the folder of the running program or in the nearest folder above it. Does
// not search the current folder: anybody who can write there could make weft-bench run a program.
std::optional<std::string> find_above(const std::string& name);

}  // namespace weft::cli::bench_internal
