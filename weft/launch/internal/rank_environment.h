// Converts the options to the number of ranks, their environment and the handling of their output.
// Pure functions, except for counting cores and GPUs.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/launcher.h"
#include "weft/launch/supervision.h"

namespace weft::launch::internal {

// Parses the options. Throws kBadConfig with option and value.
struct Job {
  int local_world = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  std::vector<int> signals;  // signals to forward
  int min_ranks = 0;         // as LaunchOptions; of the whole job
  int max_ranks = 0;         // most ranks to grow to; 0: the number of ranks is fixed
  int max_replacements = 0;
  int spares = 0;
  int servers = 0;             // parameter servers of the whole job
  bool server_backup = false;  // each shard has a copy on another server
  std::string servers_folder;  // for their directory, on one node
  OnHang on_hang = OnHang::kWarn;
  std::vector<int> redirects, tee;  // by local rank: bit 0 stdout, bit 1 stderr
  std::vector<bool> shown;          // by local rank: whether its output is shown
  int most_places = 0;              // local ranks that there have been at a time

  // Several nodes whose ranks follow the job's membership (membership.h).
  struct ByMembership {
    int min_nodes = 1;
    std::string endpoint_host;  // of LaunchOptions::rdzv_endpoint
    int endpoint_port = 0;
    std::string rendezvous;  // as LaunchOptions
    std::chrono::milliseconds join_limit = std::chrono::seconds(600);
    std::chrono::milliseconds last_call = std::chrono::seconds(30);
    std::chrono::milliseconds alone_limit = std::chrono::seconds(60);
    // The membership so far: ranks by local number, ranks of the job and of this node, nodes.
    std::vector<int> ranks = {};
    int world = 0, here = 0, nodes = 0;
  };
  std::optional<ByMembership> membership;

  int world() const { return membership ? membership->world : nodes * local_world; }
  int rank(int local) const {
    const auto at = static_cast<std::size_t>(local);
    if (membership) return at < membership->ranks.size() ? membership->ranks[at] : local;
    return node_rank * local_world + local;
  }
};
Job read_options(const LaunchOptions& options);
// Changes the number of local ranks.
void set_places(Job& job, const LaunchOptions& options, int count);

// "4", "cpu" (cores this process may use), "gpu", "auto" (GPUs, else cores).
int count_processes(const std::string& text);

// NAME=value of one rank: torchrun's table (torch 2.13, `torchrun --no-python env`).
struct Attempt {
  int restarts = 0;
  std::string error_file;
  int secret_fd = -1;     // -1: none
  int live_fd = -1;       // -1: none
  int link_fd = -1;       // end of the rank's rank_link::Link; -1: none
  bool newcomer = false;  // the job runs already: the rank joins it
  // Run folder to go on with, if no rank has the state; empty: none.
  std::string resume_run = {};
  bool reports = true;     // whether the launcher's report prints the rank's error
  int page_fd = -1;        // of the positions (observe/position); -1: none
  std::string store = {};  // socket of the job's replicated store; empty: none
  bool has_state = false;  // the ranks have had a state to hand on (weft/elastic/run.h)
};
std::vector<std::string> rank_environment(const LaunchOptions& options, const Job& job, int local,
                                          const Attempt& attempt);

// Threads per rank if OMP_NUM_THREADS is not set: cores / ranks, at least 1. 0: do not set it (one
// rank).
int threads_per_rank(int local_world);

// The program's command line; python3 runs a .py file.
std::vector<std::string> command_line(const std::vector<std::string>& program);

}  // namespace weft::launch::internal
