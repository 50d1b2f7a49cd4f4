// What `weft doctor` looks at.
#pragma once

#include <string>
#include <vector>

namespace weft::cli {

struct Finding {
  enum class Grade { kOk, kWarn, kFail };
  std::string check;
  Grade grade = Grade::kOk;
  std::string found;
  std::string fix;  // what to do; empty where all is well
};

// Toolchain, cores, memory, shared memory, limits, loopback, MPI, clock.
std::vector<Finding> machine_findings();
// Caches, NUMA nodes, network interfaces.
std::vector<Finding> part_findings();
// Torch, the libraries that are in the process with it, and the heap after a small training step.
std::vector<Finding> torch_findings();
// The topology of the job that this process is a rank of, its links measured: TOML on rank 0,
// nothing on others. Collective.
std::string found_topology();

}  // namespace weft::cli
