// Where the peers of bench/peers are on this machine, and how each is started.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::cli::bench_internal {

struct PeerProgram {
  std::string impl;  // as in its answers
  std::vector<std::string> argv;
  std::vector<std::string> environment;
};

struct Peers {
  std::vector<PeerProgram> found;
  std::vector<std::string> missing;  // "openmpi: weft_peer_mpi has not been built", for people
};

// Looks above the running program and the working directory for bench/peers, as source and as
// built, and for a Python that imports torch. `tcp`: Open MPI goes over TCP on one host too.
Peers collective_peers(int ranks, bool tcp);
// torch_training.py, which does everything but DeepSpeed's with any Python that has torch;
// `deepspeed` needs one that has deepspeed too: the one that WEFT_DEEPSPEED_PYTHON names, else the
// others.
Peers training_peers(int ranks, bool deepspeed);
// torchrun on torch_first_step.py.
Peers first_step_peers(int ranks);

// The path of `name` in the folder of the running program or in the nearest folder above it. The
// current folder does not count: whoever can write there could have weft-bench run his programs.
std::optional<std::string> find_above(const std::string& name);

}  // namespace weft::cli::bench_internal
