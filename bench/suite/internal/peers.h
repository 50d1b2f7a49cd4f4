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
  // A line for each peer that is not here, with the command that adds it.
  std::vector<std::string> missing;
};

// Searches the folders above the running program for bench/peers (sources and built programs) and
// for a Python that has torch. `tcp`: Open MPI uses TCP, also on one host.
Peers collective_peers(int ranks, bool tcp);
// torch_training.py, with a Python that has torch. `deepspeed`: with one that has deepspeed, too;
// WEFT_DEEPSPEED_PYTHON is tried first.
Peers training_peers(const std::string& impl, int ranks, bool deepspeed);
// torchrun with torch_first_step.py.
Peers first_step_peers(int ranks);

// Logs each missing peer once, however many benches ask for it.
void warn_of_missing(const Peers& peers);

// The first of the Pythons that imports the module. Starts each, and hides what it prints.
std::optional<std::string> python_that_imports(const std::string& module,
                                               const std::vector<std::string>& pythons);

// The path of `name` in the folder of the running program or in the nearest folder above it. Does
// not search the current folder: anybody who can write there could make weft-bench run a program.
std::optional<std::string> find_above(const std::string& name);

}  // namespace weft::cli::bench_internal
