// The checks of `weft doctor`.
#pragma once

#include <string>
#include <vector>

namespace weft::cli {

struct Finding {
  enum class Grade { kOk, kWarn, kFail };
  std::string check;
  Grade grade = Grade::kOk;
  std::string found;
  std::string fix;  // advice; empty if the check passed
};

// Checks toolchain, cores, memory, shared memory, limits, loopback, MPI and clock.
std::vector<Finding> machine_findings();
// Checks caches, NUMA nodes and network interfaces.
std::vector<Finding> part_findings();
// Checks torch, the libraries loaded beside it, and the heap after a small training step.
std::vector<Finding> torch_findings();
// Measures the topology of the job that this process is a rank of. Returns TOML on rank 0 and an
// empty string on other ranks. Collective.
std::string found_topology();

}  // namespace weft::cli
