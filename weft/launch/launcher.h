// Starts the ranks of one node, watches them and tells what went wrong: `weft run`, and `weft train
// -n N`.
//
//   launcher ──┬── store process: holds the c10d::TCPStore; kills what is left should the launcher
//   itself be killed
//              ├── rank 0   ┐ each in a process group of its own, dying with the launcher,
//              └── rank 1 … ┘ stdout and stderr through pipes, passed on line by line
//
// Names, defaults and environment are torchrun's (torch 2.13). Beyond them: the first failing rank
// and its exit code come out last, output is never mixed within a line, the store listens on
// loopback when there is one node, and every rank gets the job's secret.
// --no-python and --monitor-interval are not needed: programs run directly, and the end of one is
// noticed at once.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace weft::launch {

struct LaunchOptions {
  std::vector<std::string> program;  // and its arguments; only for launch()

  std::string nproc_per_node = "1";  // a number, cpu, gpu or auto
  std::string nnodes = "1";          // N or N:N; MIN:MAX is refused
  int node_rank = 0;
  std::string master_addr;  // several nodes: rank 0's host
  int master_port = 0;      // 0: a free one on one node, 29500 on several
  bool standalone = false;  // one node and a port of its own, whatever the two above say
  std::string run_id;       // empty: "none", torchrun's default; with standalone a random one
  std::string role = "default";
  // A file of at least 32 random bytes, the same on every node. Empty: made up on one node, none on
  // several (with a notice).
  std::string secret_file;

  int max_restarts = 0;  // of the whole group, counted over the job
  std::chrono::milliseconds survivor_grace = std::chrono::seconds(5);
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
  // Passed on to the ranks. USR1 and USR2 are only passed on; every other one also starts the
  // shutdown timeout, and a second one kills.
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

  // torchrun's: 0 none, 1 stdout, 2 stderr, 3 both, or "0:1,1:3" by local rank. A redirected stream
  // goes to its file, a teed one also there.
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;  // "0,2": only these are shown
  // "[rank 1] " before each line; by default when there are several ranks.
  std::optional<bool> prefix;
  // Address of the live page (live_page.h), HOST:PORT. Empty: none.
  std::string http;
  // Local rank 0 writes to the launcher's own stdout and stderr, past the launcher: for a progress
  // bar, or for JSON on stdout.
  bool rank0_keeps_terminal = false;
};

// Runs options.program as every local rank and returns when all have ended: 0, or the exit code of
// the rank that failed first (128 + n for signal n). Call it from the main thread of a process
// without other threads; it blocks the handled signals while it runs. Throws kBadConfig (options,
// port taken) and kInvalidArgument (program not found) before any rank is left running.
int launch(const LaunchOptions& options);

// The same without exec: each rank is a fork of this process, which saves loading libtorch again,
// and runs `run(rank)` with the environment already set; what `run` throws becomes the rank's error
// file, its last line on stderr and its exit code. OMP_NUM_THREADS is then only a wish: `run` has
// to call at::set_num_threads() with it.
int launch_forked(const LaunchOptions& options, const std::function<int(int rank)>& run);

}  // namespace weft::launch
