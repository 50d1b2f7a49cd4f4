#include "weft/comm/environment.h"

#include <unistd.h>

#include "weft/comm/internal/discovery.h"

namespace weft::comm {

using internal::bad_discovery;
using internal::to_number;

namespace {

constexpr int kStaticPort = 29500;  // torchrun's, when nobody names one

// What one source says; what it leaves out may come from a later one that agrees.
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

// Ports of one job, the same on every rank and seldom another job's; below the range that the
// kernel gives out by itself.
int port_of_job(std::size_t id) { return 10000 + static_cast<int>(id % 20000); }

// FNV-1a: std::hash may differ between two builds of the program.
std::size_t hash(const std::string& text) {
  std::uint64_t value = 14695981039346656037ull;
  for (const unsigned char c : text) value = (value ^ c) * 1099511628211ull;
  return value;
}

std::optional<Claim> claim(const Environment& env, const char* source, const char* rank_name,
                           const char* world_name) {
  const auto rank = env.number(rank_name), world = env.number(world_name);
  if (!rank && !world) return std::nullopt;
  if (!rank || !world) {
    const char* there = rank ? rank_name : world_name;
    bad_discovery(std::string(source) + ": " + there + "=" + *env.get(there) + " but " +
                  (rank ? world_name : rank_name) + " is not set; set both or none");
  }
  return Claim{source, rank_name, world_name, *rank, *world};
}

// RANK, WORLD_SIZE and what torchrun sets beside them.
std::optional<Claim> read_plain(const Environment& env, const char* source) {
  auto found = claim(env, source, "RANK", "WORLD_SIZE");
  if (!found) return found;
  found->local_rank = env.number("LOCAL_RANK");
  found->local_world = env.number("LOCAL_WORLD_SIZE");
  found->node_rank = env.number("GROUP_RANK");
  found->nodes = env.number("GROUP_WORLD_SIZE");
  found->restart_count = env.number("TORCHELASTIC_RESTART_COUNT");
  found->run_id = env.get("TORCHELASTIC_RUN_ID");
  // Kubeflow's PyTorchJob v1 numbers replicas, that is nodes, by RANK and WORLD_SIZE; only
  // LOCAL_RANK tells the two meanings apart.
  found->node_level = !found->local_rank;
  return found;
}

std::optional<Claim> read_torchrun(const Environment& env) {
  if (!env.has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  if (!env.has("RANK") && !env.has("WORLD_SIZE")) return std::nullopt;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!env.has(name))
      bad_discovery(std::string("TORCHELASTIC_RUN_ID is set but ") + name +
                    " is not; a launcher sets both");
  }
  return read_plain(env, "torchrun or weft run");
}

// A RANK beside Indexed Job's or nobody's WORLD_SIZE is not a pair; see read_indexed_job.
std::optional<Claim> read_user(const Environment& env) {
  if (env.has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  if (!env.has("RANK") && (env.has("JOB_COMPLETION_INDEX") || env.get("WORLD_SIZE") == "1"))
    return std::nullopt;
  return read_plain(env, "RANK and WORLD_SIZE");
}

std::optional<Claim> read_open_mpi(const Environment& env) {
  auto found = claim(env, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (!found) return found;
  // OMPI_COMM_WORLD_NODE_RANK is, despite its name, a rank within the node: no use here.
  found->local_rank = env.number("OMPI_COMM_WORLD_LOCAL_RANK");
  found->local_world = env.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  found->run_id = env.get("PMIX_NAMESPACE");
  found->mpi = true;
  return found;
}

// MPICH's launcher Hydra (Intel MPI too), and MVAPICH's own.
std::optional<Claim> read_mpich(const Environment& env) {
  if (auto found = claim(env, "MPICH (Hydra)", "PMI_RANK", "PMI_SIZE")) {
    found->local_rank = env.number("MPI_LOCALRANKID");
    found->local_world = env.number("MPI_LOCALNRANKS");
    found->mpi = true;
    return found;
  }
  auto found = claim(env, "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE");
  if (!found) return found;
  found->local_rank = env.number("MV2_COMM_WORLD_LOCAL_RANK");
  found->local_world = env.number("MV2_COMM_WORLD_LOCAL_SIZE");
  return found;
}

// "2(x3),1" -> the count of node `index`.
std::optional<int> tasks_on_node(const std::string& counts, int index) {
  for (std::size_t at = 0; at < counts.size();) {
    const auto end = std::min(counts.find(',', at), counts.size());
    const auto part = counts.substr(at, end - at);
    const auto times = part.find("(x");
    const auto repeat =
        times == std::string::npos
            ? 1
            : to_number(part.substr(times + 2, part.size() - times - 3)).value_or(1);
    if (index < repeat) return to_number(part.substr(0, times));
    index -= repeat;
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<Claim> read_slurm(const Environment& env) {
  // The shell of sbatch has SLURM_NTASKS too, but is one process and no task: a process that took
  // it for its world would wait for ever.
  if (!env.has("SLURM_STEP_ID") || !env.has("SLURM_PROCID")) return std::nullopt;
  // The step's own count before the job's: the interactive step of salloc is one task in a job of
  // many.
  const char* size = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  auto found = claim(env, "Slurm", "SLURM_PROCID", size);
  found->local_rank = env.number("SLURM_LOCALID");
  found->node_rank = env.number("SLURM_NODEID");
  found->restart_count = env.number("SLURM_RESTART_COUNT");
  if (const auto counts = env.get("SLURM_STEP_TASKS_PER_NODE"))
    found->local_world = tasks_on_node(*counts, found->node_rank.value_or(0));
  const auto list = env.has("SLURM_STEP_NODELIST") ? env.get("SLURM_STEP_NODELIST")
                                                   : env.get("SLURM_JOB_NODELIST");
  if (list) {
    const auto hosts = expand_hosts(*list);
    found->nodes = static_cast<int>(hosts.size());
    found->master_addr = hosts.size() == 1 ? "127.0.0.1" : hosts.front();
  }
  if (const auto job = env.number("SLURM_JOB_ID")) {
    found->master_port = port_of_job(static_cast<std::size_t>(*job));
    found->run_id = *env.get("SLURM_JOB_ID");
  }
  return found;
}

std::optional<Claim> read_horovod(const Environment& env) {
  auto found = claim(env, "Horovod", "HOROVOD_RANK", "HOROVOD_SIZE");
  if (!found) return found;
  found->local_rank = env.number("HOROVOD_LOCAL_RANK");
  found->local_world = env.number("HOROVOD_LOCAL_SIZE");
  found->node_rank = env.number("HOROVOD_CROSS_RANK");
  found->nodes = env.number("HOROVOD_CROSS_SIZE");
  // What listens at HOROVOD_GLOO_RENDEZVOUS_PORT is Horovod's own store, so it only serves to tell
  // jobs apart.
  found->run_id = env.get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  return found;
}

std::optional<Claim> read_indexed_job(const Environment& env) {
  const auto index = env.number("JOB_COMPLETION_INDEX");
  // In a pod, torchrun and the operators say more; the index is then only which pod this is.
  if (!index || env.has("TORCHELASTIC_RUN_ID") || env.has("RANK") || env.has("PET_NNODES"))
    return std::nullopt;
  const auto world = env.number("WORLD_SIZE");
  if (!world) {
    bad_discovery("JOB_COMPLETION_INDEX=" + std::to_string(*index) +
                  " says which pod of an Indexed Job this is, but nothing says how many there are; "
                  "set WORLD_SIZE to the job's completions (1 to run "
                  "alone)");
  }
  if (*world == 1) return std::nullopt;
  Claim found{"Kubernetes Indexed Job", "JOB_COMPLETION_INDEX", "WORLD_SIZE", *index, *world};
  found.node_level = true;
  if (!env.has("MASTER_ADDR")) {
    const auto pod = env.get("HOSTNAME").value_or("<job>-0");
    bad_discovery("Kubernetes Indexed Job: MASTER_ADDR is not set; set it to " +
                  pod.substr(0, pod.rfind('-')) + "-0.<headless service>");
  }
  return found;
}

std::optional<Claim> read_kubeflow(const Environment& env) {
  const auto nodes = env.get("PET_NNODES");
  if (!nodes || env.has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  const auto each = env.get("PET_NPROC_PER_NODE").value_or("1");
  if (each != "1") {
    bad_discovery("PET_NPROC_PER_NODE=" + each +
                  ": this node is to hold several ranks; set nprocPerNode to 1, or start the "
                  "program by torchrun, which reads PET_*");
  }
  if (nodes->find(':') != std::string::npos || !env.has("PET_NODE_RANK")) {
    bad_discovery("PET_NNODES=" + *nodes +
                  " without a fixed PET_NODE_RANK: ranks are given out at a rendezvous; start the "
                  "program by torchrun");
  }
  auto found = claim(env, "Kubeflow", "PET_NODE_RANK", "PET_NNODES");
  found->node_level = true;
  found->master_addr = env.get("PET_MASTER_ADDR");
  found->master_port = env.number("PET_MASTER_PORT");
  return found;
}

enum Kind { kTorchrun, kMpi, kSlurm, kOther };
struct Found {
  Kind kind;
  Claim claim;
};

std::vector<Found> read_all(const Environment& env) {
  using Reader = std::optional<Claim> (*)(const Environment&);
  static constexpr std::pair<Kind, Reader> kReaders[] = {
      {kTorchrun, read_torchrun}, {kMpi, read_open_mpi},   {kMpi, read_mpich},
      {kSlurm, read_slurm},       {kOther, read_horovod},  {kOther, read_user},
      {kOther, read_indexed_job}, {kOther, read_kubeflow},
  };
  std::vector<Found> found;
  for (const auto& [kind, reader] : kReaders) {
    if (auto claim = reader(env)) found.push_back({kind, *claim});
  }
  return found;
}

// Whether `other` may stand beside the winner. A launcher inside a launcher is common, so some
// differences are in order: torchrun once a node under mpirun or srun (the outer one then counts
// nodes), and mpirun under Slurm (whose step holds mpirun's daemons).
bool agrees(const Found& winner, const Found& other) {
  const auto& [kind, claim] = winner;
  if (claim.rank == other.claim.rank && claim.world == other.claim.world) return true;
  if (kind == kTorchrun && (other.kind == kMpi || other.kind == kSlurm)) {
    return other.claim.world == 1 ||
           (claim.node_rank == other.claim.rank && claim.nodes == other.claim.world);
  }
  return kind == kMpi && other.kind == kSlurm;
}

template <typename T>
void fill(std::optional<T>& value, const std::optional<T>& from) {
  if (!value) value = from;
}

Claim settle(const std::vector<Found>& found) {
  Claim result = found.front().claim;
  for (std::size_t i = 1; i < found.size(); ++i) {
    const Claim& other = found[i].claim;
    if (!agrees(found.front(), found[i])) {
      bad_discovery(found.front().claim.says() + " and " + other.says() +
                    " disagree; unset the variables of the one that is not meant");
    }
    if (other.rank != result.rank || other.world != result.world) continue;
    fill(result.local_rank, other.local_rank);
    fill(result.local_world, other.local_world);
    fill(result.node_rank, other.node_rank);
    fill(result.nodes, other.nodes);
    fill(result.master_addr, other.master_addr);
    fill(result.master_port, other.master_port);
    fill(result.restart_count, other.restart_count);
    fill(result.run_id, other.run_id);
    result.node_level = result.node_level && other.node_level;
  }
  return result;
}

void apply(const IdentityOptions& options, Claim& claim) {
  if (options.rank) claim.rank = *options.rank, claim.rank_name = "the rank given";
  if (options.world) claim.world = *options.world, claim.world_name = "the world size given";
  if (options.local_rank) claim.local_rank = options.local_rank, claim.node_level = false;
  if (options.local_world) claim.local_world = options.local_world;
  if (options.node_rank) claim.node_rank = options.node_rank;
  if (options.rank && options.world) claim.source = "options", claim.mpi = false;
}

void check(const Claim& claim) {
  const auto in = [](int value, int size) { return value >= 0 && value < size; };
  if (claim.world < 1) bad_discovery(claim.says() + ": a world has at least one rank");
  if (!in(claim.rank, claim.world))
    bad_discovery(claim.says() + ": ranks go from 0 to " + std::to_string(claim.world - 1));
  const int local_world = claim.local_world.value_or(claim.world);
  if (local_world < 1 || local_world > claim.world ||
      !in(claim.local_rank.value_or(0), local_world)) {
    bad_discovery(claim.says() + ": local rank " + std::to_string(claim.local_rank.value_or(0)) +
                  " of " + std::to_string(local_world) + " does not fit");
  }
}

// The meeting point: flag, MASTER_*, the source's own; on one host the loopback and a port made
// from the job's id.
void place_store(const Environment& env, const IdentityOptions& options, const Claim& claim,
                 Identity& me) {
  const bool one_host = claim.world == 1 || claim.nodes == 1 || claim.local_world == claim.world;
  const auto addr = options.master_addr      ? options.master_addr
                    : env.has("MASTER_ADDR") ? env.get("MASTER_ADDR")
                                             : claim.master_addr;
  const bool knows_port =
      claim.run_id || claim.master_port || options.master_port || env.has("MASTER_PORT");
  me.mpi = claim.mpi;
  me.meets_through_mpi = claim.mpi && me.world > 1 && !addr && !(one_host && knows_port);
  if (!addr && !one_host && !claim.mpi) {
    bad_discovery(claim.says() +
                  ": there are several hosts and nothing says where rank 0 is; set MASTER_ADDR to "
                  "its host (mpirun: -x MASTER_ADDR=HOST)");
  }
  const bool derive = one_host && !addr && claim.run_id;
  std::optional<int> port =
      options.master_port ? std::optional<int>(*options.master_port) : env.number("MASTER_PORT");
  fill(port, claim.master_port);
  if (!port) port = derive ? port_of_job(hash(*claim.run_id)) : me.world == 1 ? 0 : kStaticPort;
  if (*port > 65535) bad_discovery("MASTER_PORT=" + std::to_string(*port) + ": ports end at 65535");
  me.master_addr = addr.value_or(one_host ? "127.0.0.1" : "");
  me.master_port = static_cast<std::uint16_t>(*port);
}

}  // namespace

Environment Environment::process() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::get(const std::string& name) const {
  const auto at = variables_.find(name);
  if (at == variables_.end() || at->second.empty()) return std::nullopt;
  return at->second;
}

std::optional<int> Environment::number(const std::string& name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = to_number(*text);
  if (!value) bad_discovery(name + "=" + *text + " is not a whole number");
  return value;
}

Identity discover(const Environment& env, const IdentityOptions& options) {
  // With rank and world given, the variables may say what they like.
  const auto found = options.rank && options.world ? std::vector<Found>() : read_all(env);
  Claim claim{"alone", "rank", "world", 0, 1, 0, 1, 0, 1};
  if (!found.empty()) {
    claim = settle(found);
  } else if (options.world.value_or(1) > 1) {
    claim.local_rank = claim.local_world = claim.node_rank = claim.nodes = std::nullopt;
    claim.node_level = true;
    if (!options.rank)
      bad_discovery("a world of " + std::to_string(*options.world) + " is given, but no rank");
  }
  apply(options, claim);
  check(claim);

  Identity me;
  me.source = claim.source;
  me.rank = claim.rank;
  me.world = claim.world;
  me.node_level = claim.node_level;
  me.local_rank = claim.local_rank.value_or(0);
  me.local_world = claim.local_world.value_or(claim.node_level ? 1 : me.local_rank + 1);
  me.node_rank =
      claim.node_rank.value_or(claim.node_level ? claim.rank : claim.rank / me.local_world);
  me.restart_count = claim.restart_count.value_or(0);
  me.run_id = claim.run_id.value_or("none");
  place_store(env, options, claim, me);
  me.store_is_hosted_elsewhere = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" &&
                                 !found.empty() && found.front().kind == kTorchrun;
  return me;
}

std::string Identity::banner() const {
  std::string line = "rank " + std::to_string(rank) + " of " + std::to_string(world);
  line += node_level
              ? " (one a node: no local rank was given)"
              : " (local " + std::to_string(local_rank) + " of " + std::to_string(local_world) +
                    ", node " + std::to_string(node_rank) + ")";
  if (meets_through_mpi)
    line += ", meeting through MPI";
  else if (master_port != 0)
    line += ", store at " + master_addr + ":" + std::to_string(master_port) +
            (store_is_hosted_elsewhere ? " (the launcher's)" : "");
  line += ", from " + source;
  if (run_id != "none") line += ", run " + run_id;
  if (restart_count > 0) line += ", restart " + std::to_string(restart_count);
  return line;
}

}  // namespace weft::comm
