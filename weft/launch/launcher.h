// Starts the ranks of one node, watches them and reports failures: used by `weft run` and `weft
// train -n N`.
//
//   launcher ──┬── store process: hosts the c10d::TCPStore; kills all remaining processes if the
//              │   launcher is killed
//              ├── rank 0   ┐ each in its own process group, ends with the launcher; stdout and
//              └── rank 1 … ┘ stderr go through pipes, forwarded line by line
//
// Names, defaults and environment are torchrun's (torch 2.13). Additions: the rank that failed
// first and its exit code are printed last, output is never mixed within a line, the store listens
// on loopback if there is one node, and every rank gets the job's secret. --no-python and
// --monitor-interval are not needed: programs run directly, and the end of one is noticed at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace weft::launch {

// How a job ends that is asked to go: by a signal, weft stop, or a notice.
struct Going {
  // Time from the request to SIGKILL: the ranks save a checkpoint in it. They are killed up to 2 s
  // earlier, so that the launcher can still say that no checkpoint fit. nullopt: shutdown_timeout.
  std::optional<std::chrono::milliseconds> grace = {};
  // After a stop by SIGUSR1 or a notice, call `scontrol requeue $SLURM_JOB_ID` on node 0.
  bool requeue = false;
  // A shell command that runs every notice_interval. Exit code 0: this machine will be taken away,
  // so the job saves a checkpoint and ends. Empty: none.
  std::string notice_command;
  std::chrono::milliseconds notice_interval = std::chrono::seconds(5);
};

// How a job of one node whose number of ranks may change chooses it by itself.
struct Scaling {
  // A shell command that prints a line "host:slots" for each host (Horovod's contract). The job has
  // as many ranks as this host has slots, within its limits. Empty: none.
  std::string discovery_script;
  std::chrono::milliseconds discovery_interval = std::chrono::seconds(5);
  // Use the most ranks whose throughput per rank is at least this fraction of the best one. 0: do
  // not. Programs of train::Trainer only.
  double efficiency = 0;
};

// Parameter servers (weft/ps) that run beside the ranks, each in a process of its own. On several
// nodes they are spread over the nodes. A server that ends is started again; the ranks of a job
// without servers left are told to stop. They end after the ranks.
struct ParameterServers {
  int count = 0;  // of the whole job. 0: none
  // Each shard has a copy on the next server. Not with one server.
  bool backup = true;
  std::int64_t memory_mb = 4096;  // most memory of a shard
  std::string program;            // path of weft_ps. Empty: it lies beside this program
};

struct LaunchOptions {
  std::vector<std::string> program;  // program and arguments; only for launch()

  // A number, cpu, gpu or auto. MIN:MAX: begin with MAX ranks, go on with MIN (min_ranks), and
  // replace all lost ranks.
  std::string nproc_per_node = "1";
  std::string nnodes = "1";  // N; with one of the next two fields also MIN:MAX
  // Several nodes that survive the loss of any of them: HOST[:PORT] of the node that comes first,
  // or "etcd://HOST:PORT[,HOST:PORT…][/PREFIX]". The nodes need no numbers then. Empty: node 0
  // hosts the store, and must not be lost.
  std::string rdzv_endpoint;
  std::string rendezvous;
  // "join_timeout=600,last_call_timeout=30,read_timeout=60", in seconds: the time until enough
  // nodes must be there, the time to wait for more, and the time after which a node that reaches
  // no majority ends.
  std::string rdzv_conf;
  int node_rank = 0;
  std::string master_addr;  // several nodes: rank 0's host
  int master_port = 0;      // 0: a free port on one node, 29500 on several
  bool standalone = false;  // one node and a free port, whatever the two fields above say
  std::string run_id;       // empty: "none", torchrun's default; with standalone a random one
  std::string role = "default";
  // A file of at least 32 random bytes, the same on every node. Empty: generated on one node, none
  // on several (with a warning).
  std::string secret_file;

  int max_restarts = 0;  // restarts of the whole group, counted over the job
  // Lost ranks to replace while the others go on, counted over the job. The program must regroup
  // (Group::regroup with keep_ranks), as train::Trainer does. A rank that a signal has stopped
  // (SIGSTOP) for 1.5 s counts as lost and is killed. If all ranks are lost, they start again from
  // the newest checkpoint, which counts as one. nullopt: 0, or no limit if nproc_per_node is a
  // range.
  std::optional<int> max_replacements = {};
  // With at least this many ranks left, the others go on without a lost rank that is not replaced.
  // They grow again when it can be replaced. 0: never. The program must regroup, as above.
  int min_ranks = 0;
  // Processes of each node that have loaded the program and wait to take the place of a lost rank
  // (weft/rank_link/spare.h). Needs max_replacements.
  int spares = 0;
  // What to do about a rank that hangs: "warn" names it and prints a table of all ranks' positions.
  // "replace" also kills it after twice that time, so that it is replaced or left out. "end" ends
  // the job then, with exit code 200.
  std::string on_hang = "warn";
  std::chrono::milliseconds survivor_grace = std::chrono::seconds(5);
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
  Going going;
  Scaling scaling;
  ParameterServers servers;
  // Signals forwarded to the ranks. USR1 and USR2 are only forwarded. Any other signal also starts
  // the grace period, and a second one, at least 0.5 s later, kills. Without USR1 here, USR1 is
  // such a request too: the ranks get SIGTERM.
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

  // As in torchrun: 0 none, 1 stdout, 2 stderr, 3 both, or "0:1,1:3" by local rank. A redirected
  // stream goes to its file only; a teed one also to its file.
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;  // "0,2": only these ranks are shown
  // Print "[rank 1] " before each line. Default: if there are several ranks.
  std::optional<bool> prefix;
  // Address of the live page (live_page.h), HOST:PORT. Empty: none.
  std::string http;
  // Local rank 0 writes directly to the launcher's stdout and stderr: for a progress bar, or for
  // JSON on stdout.
  bool rank0_keeps_terminal = false;
};

// Runs options.program as every local rank and returns when all have ended: 0, or the exit code of
// the rank that failed first (128 + n for signal n). Call it from the main thread of a process
// without other threads; it blocks the handled signals while it runs. Throws kBadConfig (options,
// port taken) and kInvalidArgument (program not found) before any rank is left running.
int launch(const LaunchOptions& options);

// As above, without exec: each rank is a fork of this process, which saves loading libtorch again.
// It runs `run(rank)` with the environment set; a spare runs run(-1). An exception of `run` becomes
// the rank's error file, its last line on stderr and its exit code. OMP_NUM_THREADS has no effect
// by itself: `run` must call at::set_num_threads() with it.
int launch_forked(const LaunchOptions& options, const std::function<int(int rank)>& run);

}  // namespace weft::launch
