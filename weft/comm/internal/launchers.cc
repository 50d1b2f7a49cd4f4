#include "weft/comm/internal/launchers.h"

#include "weft/base/text/numbers.h"
#include "weft/comm/internal/discovery.h"

namespace weft::comm::internal {
namespace {

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

// RANK, WORLD_SIZE and the other variables of torchrun.
std::optional<Claim> read_plain(const Environment& env, const char* source) {
  auto found = claim(env, source, "RANK", "WORLD_SIZE");
  if (!found) return found;
  found->local_rank = env.number("LOCAL_RANK");
  found->local_world = env.number("LOCAL_WORLD_SIZE");
  found->node_rank = env.number("GROUP_RANK");
  found->nodes = env.number("GROUP_WORLD_SIZE");
  found->restart_count = env.number("TORCHELASTIC_RESTART_COUNT");
  found->run_id = env.get("TORCHELASTIC_RUN_ID");
  // Kubeflow's PyTorchJob v1 uses RANK and WORLD_SIZE for replicas, that is, nodes. Only LOCAL_RANK
  // tells the two meanings apart.
  found->node_level = !found->local_rank;
  return found;
}

std::optional<Claim> read_torchrun(const Environment& env) {
  if (!env.has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  if (!env.has("RANK") && !env.has("WORLD_SIZE")) return std::nullopt;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!env.has(name))
      bad_discovery(std::string("TORCHELASTIC_RUN_ID is set but ") + name +
                    " is not; torchrun sets both");
  }
  return read_plain(env, "torchrun or weft run");
}

// WORLD_SIZE without RANK is not a pair if it belongs to an Indexed Job (read_indexed_job) or is 1.
std::optional<Claim> read_user(const Environment& env) {
  if (env.has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  if (!env.has("RANK") && (env.has("JOB_COMPLETION_INDEX") || env.get("WORLD_SIZE") == "1"))
    return std::nullopt;
  return read_plain(env, "RANK and WORLD_SIZE");
}

std::optional<Claim> read_open_mpi(const Environment& env) {
  auto found = claim(env, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (!found) return found;
  // Despite its name, OMPI_COMM_WORLD_NODE_RANK is a rank within the node, so it is not used.
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
            : parse_count(part.substr(times + 2, part.size() - times - 3)).value_or(1);
    if (index < repeat) return parse_count(part.substr(0, times));
    index -= repeat;
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<Claim> read_slurm(const Environment& env) {
  // sbatch's batch shell has SLURM_NTASKS too, but it is a single process and not a task. A process
  // that took this value as its world size would wait forever.
  if (!env.has("SLURM_STEP_ID") || !env.has("SLURM_PROCID")) return std::nullopt;
  // The step's own count wins over the job's: the interactive step of salloc is one task in a job
  // of many.
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
  // HOROVOD_GLOO_RENDEZVOUS_PORT belongs to Horovod's own store, so it only serves to tell jobs
  // apart.
  found->run_id = env.get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  return found;
}

std::optional<Claim> read_indexed_job(const Environment& env) {
  const auto index = env.number("JOB_COMPLETION_INDEX");
  // In a pod, the variables of torchrun and of the operators take precedence. The index then only
  // names the pod.
  if (!index || env.has("TORCHELASTIC_RUN_ID") || env.has("RANK") || env.has("PET_NNODES"))
    return std::nullopt;
  const auto world = env.number("WORLD_SIZE");
  if (!world) {
    bad_discovery("JOB_COMPLETION_INDEX=" + std::to_string(*index) +
                  " gives the index of this pod in an Indexed Job, but the number of pods is "
                  "unknown; set WORLD_SIZE to the job's completions (1 to run alone)");
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
                  ": several ranks per node are requested; set nprocPerNode to 1, or start the "
                  "program with torchrun, which reads PET_*");
  }
  if (nodes->find(':') != std::string::npos || !env.has("PET_NODE_RANK")) {
    bad_discovery("PET_NNODES=" + *nodes +
                  " without a fixed PET_NODE_RANK: ranks are assigned by an elastic rendezvous; "
                  "start the program with torchrun");
  }
  auto found = claim(env, "Kubeflow", "PET_NODE_RANK", "PET_NNODES");
  found->node_level = true;
  found->master_addr = env.get("PET_MASTER_ADDR");
  found->master_port = env.number("PET_MASTER_PORT");
  return found;
}

}  // namespace

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

}  // namespace weft::comm::internal
