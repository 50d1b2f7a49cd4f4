// discover() finds this process's rank, world and meeting point from the launcher that started it.
//
// It is a pure function of the environment variables. The first source that is there wins:
//   options > torchrun / weft run > Open MPI > MPICH, Hydra, MVAPICH > Slurm (srun) > Horovod
//           > RANK + WORLD_SIZE > Kubernetes Indexed Job > Kubeflow PET_* > alone (a world of one)
// Later sources with the same values fill in what the first leaves out. A later source with other
// values is an error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::comm {

// A read-only view of environment variables. An empty value counts as unset.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {}
  // Copy of this process's environment. Do not call it while another thread calls setenv().
  static Environment process();

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return get(name).has_value(); }
  // Throws kBadConfig if the value is not a whole number >= 0.
  std::optional<int> number(const std::string& name) const;

 private:
  std::map<std::string, std::string> variables_;
};

// Identity given by the program's own flags. Each value that is set wins over every variable,
// without an error.
struct IdentityOptions {
  std::optional<int> rank, world, local_rank, local_world, node_rank;
  std::optional<std::string> master_addr;
  std::optional<std::uint16_t> master_port;
};

struct Identity {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  int node_rank = 0;
  // Address and port of the c10d::TCPStore. Port 0, only for a process alone: take a free port. No
  // address: the ranks are on several hosts, and only MPI knows them all.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  // True: the launcher hosts the store, and every rank, also rank 0, is a client. False: rank 0
  // hosts it.
  bool store_is_hosted_elsewhere = false;
  // True: rank and world count nodes (no local rank was given). Either a launcher on this node must
  // multiply them, or there is one rank per node.
  bool node_level = false;
  int restart_count = 0;
  std::string run_id = "none";
  // True: rank and world come from an MPI launcher, so the ranks can use that MPI
  // (WEFT_TRANSPORT=mpi).
  bool mpi = false;
  // True: the ranks must meet through MPI. No variable names a place for the store, or only one
  // that every job of this host would take.
  bool meets_through_mpi = false;
  // Name of the source that won, for people: "Open MPI".
  std::string source = "alone";

  // One line for the log: "rank 3 of 8 (local 1 of 2, node 1), store at 10.0.0.1:29500, from Slurm,
  // run 4711".
  std::string banner() const;
};

// Finds the identity. Throws kBadConfig, naming variables and values: if two sources disagree, half
// of a pair is missing, or a value is no number or out of range. Also throws it if there are
// several hosts, no MPI joins them, and nothing names the first host.
Identity discover(const Environment& environment, const IdentityOptions& options = {});

// Expands Slurm's host lists: "a,node[08-10,20]-ib" -> a, node08-ib, node09-ib, node10-ib,
// node20-ib. Throws kBadConfig if the list is malformed or expands to more than 65536 names.
std::vector<std::string> expand_hosts(const std::string& list);

}  // namespace weft::comm
