// What the options mean for each rank: how many, which environment, what happens to its output.
// Pure but for counting cores and GPUs.
#pragma once

#include <string>
#include <vector>

#include "weft/launch/launcher.h"

namespace weft::launch::internal {

// The options after the strings have been read; throws kBadConfig, naming option and value.
struct Job {
  int local_world = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  std::vector<int> signals;         // to be passed on
  std::vector<int> redirects, tee;  // by local rank: bit 0 stdout, bit 1 stderr
  std::vector<bool> shown;          // by local rank: its output reaches the launcher's

  int world() const { return nodes * local_world; }
  int rank(int local) const { return node_rank * local_world + local; }
};
Job read_options(const LaunchOptions& options);

// "4", "cpu" (cores this process may use), "gpu", "auto" (GPUs, else cores).
int count_processes(const std::string& text);

// NAME=value of one rank: torchrun's table (torch 2.13, `torchrun --no-python env`).
struct Attempt {
  int restarts = 0;
  std::string error_file;
  int secret_fd = -1;   // none: -1
  int live_fd = -1;     // none: -1
  bool reports = true;  // the launcher's report prints the rank's error
};
std::vector<std::string> rank_environment(const LaunchOptions& options, const Job& job, int local,
                                          const Attempt& attempt);

// Threads a rank when OMP_NUM_THREADS is not set: the cores shared out, at least 1. 0: leave it
// alone (one rank).
int threads_per_rank(int local_world);

// The program's command line; a .py file is run by python3.
std::vector<std::string> command_line(const std::vector<std::string>& program);

}  // namespace weft::launch::internal
