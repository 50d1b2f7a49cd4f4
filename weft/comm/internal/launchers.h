// Reads the environment variables of each launcher.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/comm/environment.h"

namespace weft::comm::internal {

// The values of one source. A later source that agrees may fill in missing values.
struct Claim {
  std::string source;
  std::string rank_name, world_name;
  int rank = 0, world = 1;
  std::optional<int> local_rank = {}, local_world = {}, node_rank = {}, nodes = {};
  std::optional<std::string> master_addr = {};
  std::optional<int> master_port = {};
  std::optional<int> restart_count = {};
  std::optional<std::string> run_id = {};
  bool node_level = false;
  bool mpi = false;

  std::string says() const {
    return source + " (" + rank_name + "=" + std::to_string(rank) + ", " + world_name + "=" +
           std::to_string(world) + ")";
  }
};

enum Kind { kTorchrun, kMpi, kSlurm, kOther };
struct Found {
  Kind kind;
  Claim claim;
};

// All launchers whose variables are set, the most specific one first. Throws kBadConfig if the
// variables of one contradict each other or lack a part.
std::vector<Found> read_all(const Environment& env);

// Derives a port from the job's id: the same on every rank, rarely that of another job, and below
// the kernel's ephemeral range.
inline int port_of_job(std::size_t id) { return 10000 + static_cast<int>(id % 20000); }

}  // namespace weft::comm::internal
