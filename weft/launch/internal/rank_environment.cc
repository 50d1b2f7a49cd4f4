#include "weft/launch/internal/rank_environment.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "weft/base/error.h"
#include "weft/base/process/host.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"
#include "weft/store/etcd_url.h"

namespace weft::launch::internal {
namespace {

constexpr int kMaxRanks = 256;  // limit of ranks that share a host's memory
constexpr int kMaxNodes = 1 << 20;
constexpr int kMaxServers = 64;  // each connects with its neighbors, and each worker with all

[[noreturn]] void bad(const std::string& option, const std::string& value,
                      const std::string& what) {
  throw Error(Errc::kBadConfig, "--" + option + " " + value + ": " + what, {"launch", -1, -1});
}

int number(const std::string& option, const std::string& whole, const std::string& text) {
  const auto value = parse_count(text);
  if (!value) bad(option, whole, "\"" + text + "\" is not a whole number");
  return *value;
}

int cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int gpus() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const auto name = entry.path().filename().string();
    const bool numbered = name.rfind("nvidia", 0) == 0 && name.size() > 6 &&
                          name.find_first_not_of("0123456789", 6) == std::string::npos;
    count += numbered;
  }
  return count;
}

// "3" for all local ranks, or "0:1,1:3".
std::vector<int> by_rank(const std::string& option, const std::string& text, int local_world) {
  std::vector<int> result(static_cast<std::size_t>(local_world), 0);
  const auto stream = [&](const std::string& digits) {
    const int value = number(option, text, digits);
    return value <= 3
               ? value
               : (bad(option, text, "the streams are 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"),
                  0);
  };
  for (const auto& part : split(text, ',')) {
    const auto colon = part.find(':');
    if (colon == std::string::npos) {
      result.assign(result.size(), stream(part));
      continue;
    }
    const int rank = number(option, text, part.substr(0, colon));
    if (rank >= local_world) bad(option, text, "there is no local rank " + std::to_string(rank));
    result[static_cast<std::size_t>(rank)] = stream(part.substr(colon + 1));
  }
  return result;
}

std::vector<bool> shown_ranks(const std::string& filter, int local_world) {
  std::vector<bool> shown(static_cast<std::size_t>(local_world), filter.empty());
  for (const auto& part : split(filter, ',')) {
    const int rank = number("local-ranks-filter", filter, part);
    if (rank >= local_world) bad("local-ranks-filter", filter, "there is no local rank " + part);
    shown[static_cast<std::size_t>(rank)] = true;
  }
  return shown;
}

std::vector<int> signal_numbers(const std::string& names) {
  std::vector<int> numbers;
  for (const auto& name : split(names, ',')) {
    int found = 0;
    for (int i = 1; i < NSIG; ++i) {
      const char* known = ::sigabbrev_np(i);
      if (known != nullptr && (name == std::string("SIG") + known || name == known)) found = i;
    }
    if (found == 0 || found == SIGKILL || found == SIGSTOP || found == SIGCHLD)
      bad("signals-to-handle", names, "cannot handle " + name);
    numbers.push_back(found);
  }
  return numbers;
}

// {MIN, MAX} of "N" or "MIN:MAX".
std::pair<int, int> node_counts(const LaunchOptions& options) {
  const std::string& text = options.nnodes;
  const auto parts = split(text, ':');
  const auto colons = std::count(text.begin(), text.end(), ':');
  if (parts.size() != static_cast<std::size_t>(colons) + 1 || colons > 1)
    bad("nnodes", text, "expected N or MIN:MAX");
  const int least = number("nnodes", text, parts.front());
  const int most = number("nnodes", text, parts.back());
  if (least < 1) bad("nnodes", text, "at least 1");
  if (most > kMaxNodes) bad("nnodes", text, "at most " + std::to_string(kMaxNodes));
  if (most < least) bad("nnodes", text, "expected MIN:MAX in ascending order");
  if (least < most && options.rdzv_endpoint.empty() && options.rendezvous.empty())
    bad("nnodes", text,
        "a variable number of nodes needs --rdzv-endpoint HOST:PORT or --rendezvous etcd://…");
  return {least, most};
}

constexpr int kEndpointPort = 29400;  // as torchrun's

void read_endpoint(const LaunchOptions& options, Job::ByMembership& membership) {
  const std::string& text = options.rdzv_endpoint;
  const auto bracket = text.rfind(']');  // "[::1]:29400"
  const auto colon = text.rfind(':');
  const bool has_port = colon != std::string::npos &&
                        (bracket == std::string::npos ? text.find(':') == colon : colon > bracket);
  membership.endpoint_host = has_port ? text.substr(0, colon) : text;
  if (const auto size = membership.endpoint_host.size();
      size > 2 && membership.endpoint_host.front() == '[' && membership.endpoint_host.back() == ']')
    membership.endpoint_host = membership.endpoint_host.substr(1, size - 2);
  membership.endpoint_port =
      has_port ? number("rdzv-endpoint", text, text.substr(colon + 1)) : kEndpointPort;
  if (membership.endpoint_host.empty()) bad("rdzv-endpoint", text, "expected HOST or HOST:PORT");
  if (membership.endpoint_port < 1 || membership.endpoint_port > 65535)
    bad("rdzv-endpoint", text, "a port is a number from 1 to 65535");
}

void read_rendezvous_times(const LaunchOptions& options, Job::ByMembership& membership) {
  const std::map<std::string, std::chrono::milliseconds*> known = {
      {"join_timeout", &membership.join_limit},
      {"last_call_timeout", &membership.last_call},
      {"read_timeout", &membership.alone_limit}};
  for (const auto& part : split(options.rdzv_conf, ',')) {
    const auto equals = part.find('=');
    const auto key = known.find(part.substr(0, equals));
    if (key == known.end() || equals == std::string::npos)
      bad("rdzv-conf", options.rdzv_conf,
          "expected join_timeout=S, last_call_timeout=S and read_timeout=S, in seconds");
    *key->second =
        std::chrono::seconds(number("rdzv-conf", options.rdzv_conf, part.substr(equals + 1)));
  }
}

// Nodes that meet at an endpoint or in etcd. One node needs neither.
void read_membership(const LaunchOptions& options, int min_nodes, Job& job) {
  const bool asked = !options.rdzv_endpoint.empty() || !options.rendezvous.empty();
  if (!options.rdzv_endpoint.empty() && !options.rendezvous.empty())
    bad("rendezvous", options.rendezvous, "leave out --rdzv-endpoint");
  if (asked && !options.master_addr.empty())
    bad("master-addr", options.master_addr, "leave it out: the nodes meet elsewhere");
  Job::ByMembership membership;
  read_rendezvous_times(options, membership);
  if (!asked || job.nodes == 1) return;
  membership.min_nodes = min_nodes;
  if (options.rendezvous.empty()) {
    read_endpoint(options, membership);
  } else {
    const auto url = store::parse_etcd_url(options.rendezvous);
    if (options.run_id.empty())
      bad("rendezvous", options.rendezvous, "set --rdzv-id, the name of the job, on every node");
    membership.endpoint_host = url.endpoints.front().host;
    membership.endpoint_port = url.endpoints.front().port;
    membership.rendezvous = options.rendezvous;
  }
  membership.world = job.nodes * job.local_world;
  job.membership = membership;
  job.node_rank = 0;
  job.master_addr = membership.endpoint_host;
  job.master_port = membership.endpoint_port;
}

// After the limits of the job are known.
OnHang parse_on_hang(const LaunchOptions& options, const Job& job) {
  if (options.on_hang == "warn") return OnHang::kWarn;
  if (options.on_hang == "end") return OnHang::kEnd;
  if (options.on_hang != "replace")
    bad("on-hang", options.on_hang, "expected warn, replace or end");
  if (job.max_replacements == 0 && job.min_ranks == 0)
    bad("on-hang", options.on_hang, "set --max-replacements, --min-ranks or -n MIN:MAX, too");
  return OnHang::kReplace;
}

std::string random_id() {
  std::random_device random;
  return formatted("%08x%08x", random(), random());
}

}  // namespace

int count_processes(const std::string& text) {
  if (text == "cpu") return cores();
  const int devices = text == "gpu" || text == "auto" ? gpus() : 0;
  if (text == "gpu" && devices == 0)
    bad("nproc-per-node", text, "there is no /dev/nvidia0; use cpu or a number");
  if (text == "gpu" || text == "auto") return devices > 0 ? devices : cores();
  const int count = number("nproc-per-node", text, text);
  return count >= 1 ? count : (bad("nproc-per-node", text, "at least 1"), 0);
}

// The options may name each rank that the job has begun with, also if it has fewer now.
void set_places(Job& job, const LaunchOptions& options, int count) {
  job.most_places = std::max(job.most_places, count);
  const auto places = static_cast<std::size_t>(count);
  job.local_world = count;
  job.redirects = by_rank("redirects", options.redirects, job.most_places);
  job.tee = by_rank("tee", options.tee, job.most_places);
  job.shown = shown_ranks(options.local_ranks_filter, job.most_places);
  job.redirects.resize(places);
  job.tee.resize(places);
  job.shown.resize(places);
}

namespace {

// "MIN:MAX": begins with MAX ranks, and goes on with MIN.
void read_number_of_ranks(const LaunchOptions& options, Job& job) {
  const std::string& text = options.nproc_per_node;
  const auto colon = text.find(':');
  job.local_world = count_processes(text.substr(colon == std::string::npos ? 0 : colon + 1));
  if (job.local_world > kMaxRanks)
    bad("nproc-per-node", text, "at most " + std::to_string(kMaxRanks) + " on a node");
  if (colon == std::string::npos) return;
  job.min_ranks = number("nproc-per-node", text, text.substr(0, colon));
  job.max_ranks = job.local_world;
  if (job.min_ranks < 1 || job.min_ranks > job.max_ranks)
    bad("nproc-per-node", text, "expected MIN:MAX, from 1 and in ascending order");
}

// Replacements, and the limits of the number of ranks.
void read_elasticity(const LaunchOptions& options, Job& job) {
  const bool range = job.max_ranks > 0;
  if (options.min_ranks < 0 || options.min_ranks > job.world())
    bad("min-ranks", std::to_string(options.min_ranks),
        "from 0 to " + std::to_string(job.world()) + ", the number of ranks");
  if (range && job.nodes > 1)
    bad("nproc-per-node", options.nproc_per_node, "a range is supported on one node only");
  if (range && options.min_ranks > 0)
    bad("min-ranks", std::to_string(options.min_ranks),
        "--nproc-per-node " + options.nproc_per_node + " gives it already");
  if (!range) job.min_ranks = options.min_ranks;
  const bool node_range = job.membership && job.membership->min_nodes < job.nodes;
  if (node_range && job.min_ranks == 0) job.min_ranks = job.membership->min_nodes * job.local_world;
  job.max_replacements = options.max_replacements.value_or(range || node_range ? kNoLimit : 0);
  if (job.max_replacements < 0)
    bad("max-replacements", std::to_string(job.max_replacements), "0 or more");
  job.spares = options.spares;
  if (job.spares < 0 || job.spares > kMaxRanks)
    bad("spares", std::to_string(job.spares), "from 0 to " + std::to_string(kMaxRanks));
  if (job.spares > 0 && job.max_replacements == 0)
    bad("spares", std::to_string(job.spares), "set --max-replacements or -n MIN:MAX, too");
  const bool elastic = job.max_replacements > 0 || job.min_ranks > 0;
  if (elastic && !range && job.nodes == 1) job.max_ranks = kMaxRanks;
  const Scaling& scaling = options.scaling;
  if (!(scaling.efficiency >= 0 && scaling.efficiency < 1))
    bad("scale-efficiency", std::to_string(scaling.efficiency), "from 0 to less than 1");
  if ((scaling.efficiency > 0 || !scaling.discovery_script.empty()) && !range)
    throw Error(Errc::kBadConfig,
                "--discovery-script and --scale-efficiency need -n MIN:MAX, on one node",
                {"launch", -1, -1});
}

void read_servers(const LaunchOptions& options, Job& job) {
  const ParameterServers& servers = options.servers;
  const std::string count = std::to_string(servers.count);
  if (servers.count < 0 || servers.count > kMaxServers)
    bad("servers", count, "from 0 to " + std::to_string(kMaxServers));
  constexpr std::int64_t kMaxMemory = std::int64_t{1} << 30;
  if (servers.memory_mb < 1 || servers.memory_mb > kMaxMemory)
    bad("server-memory", std::to_string(servers.memory_mb),
        "from 1 to " + std::to_string(kMaxMemory) + " megabytes");
  if (servers.count > 0 && job.nodes > 1 && !job.membership)
    bad("servers", count,
        "nodes with --master-addr have no store for servers; use --rdzv-endpoint or --rendezvous");
  job.servers = servers.count;
  job.server_backup = servers.backup && servers.count > 1;
}

}  // namespace

Job read_options(const LaunchOptions& options) {
  Job job;
  read_number_of_ranks(options, job);
  const auto [min_nodes, max_nodes] = node_counts(options);
  job.nodes = options.standalone ? 1 : max_nodes;
  job.node_rank = options.standalone ? 0 : options.node_rank;
  job.master_port = options.standalone ? 0 : options.master_port;
  read_membership(options, min_nodes, job);
  if (job.node_rank < 0 || job.node_rank >= job.nodes) {
    bad("node-rank", std::to_string(options.node_rank),
        "nodes are numbered from 0 to " + std::to_string(job.nodes - 1));
  }
  if (options.master_port < 0 || options.master_port > 65535)
    bad("master-port", std::to_string(options.master_port), "the highest port is 65535");
  if (job.nodes > 1 && !job.membership) {
    if (options.master_addr.empty())
      bad("nnodes", options.nnodes, "set --master-addr, the host of node 0, on every node");
    job.master_addr = parse_host("--master-addr", options.master_addr, "--master-port");
    if (job.master_port == 0) job.master_port = 29500;
  }
  if (options.going.requeue && !is_variable_set("SLURM_JOB_ID"))
    throw Error(Errc::kBadConfig, "--requeue: SLURM_JOB_ID is not set, so this is no job of Slurm",
                {"launch", -1, -1});
  if (options.max_restarts < 0)
    bad("max-restarts", std::to_string(options.max_restarts), "0 or more");
  read_elasticity(options, job);
  read_servers(options, job);
  job.on_hang = parse_on_hang(options, job);
  if (options.max_restarts > 0 && job.nodes > 1)
    bad("max-restarts", std::to_string(options.max_restarts), "supported on one node only");
  job.run_id = !options.run_id.empty() ? options.run_id : options.standalone ? random_id() : "none";
  job.signals = signal_numbers(options.signals_to_handle);
  set_places(job, options, job.local_world);
  return job;
}

int threads_per_rank(int local_world) {
  return local_world > 1 ? std::max(1, cores() / local_world) : 0;
}

std::vector<std::string> rank_environment(const LaunchOptions& options, const Job& job, int local,
                                          const Attempt& attempt) {
  const auto text = [](int value) { return std::to_string(value); };
  std::vector<std::string> result = {
      "RANK=" + text(job.rank(local)),
      "WORLD_SIZE=" + text(job.world()),
      "LOCAL_RANK=" + text(local),
      "LOCAL_WORLD_SIZE=" + text(job.membership ? job.membership->here : job.local_world),
      "GROUP_RANK=" + text(job.node_rank),
      "GROUP_WORLD_SIZE=" + text(job.membership ? job.membership->nodes : job.nodes),
      "ROLE_NAME=" + options.role,
      "ROLE_RANK=" + text(job.rank(local)),
      "ROLE_WORLD_SIZE=" + text(job.world()),
      "MASTER_ADDR=" + job.master_addr,
      "MASTER_PORT=" + text(job.master_port),
      "TORCHELASTIC_RESTART_COUNT=" + text(attempt.restarts),
      "TORCHELASTIC_MAX_RESTARTS=" + text(options.max_restarts),
      "TORCHELASTIC_RUN_ID=" + job.run_id,
      "TORCHELASTIC_USE_AGENT_STORE=True",
      "TORCHELASTIC_SIGNALS_TO_HANDLE=" + options.signals_to_handle,
      "TORCHELASTIC_ERROR_FILE=" + attempt.error_file,
  };
  // Always set: a launcher that a rank starts has its own values.
  const bool elastic = job.max_replacements > 0 || job.min_ranks > 0;
  result.push_back(std::string("WEFT_ELASTIC=") + (elastic ? "1" : "0"));
  result.push_back("WEFT_LAUNCHER_PID=" + text(::getpid()));
  result.push_back("WEFT_MIN_RANKS=" + text(job.min_ranks));
  const bool grows = job.membership && job.min_ranks > 0;
  result.push_back("WEFT_JOIN_TIMEOUT=" +
                   (grows ? std::to_string(job.membership->join_limit.count() / 1000) : ""));
  result.push_back("WEFT_RESUME_RUN=" + attempt.resume_run);
  result.push_back(std::string("WEFT_NEWCOMER=") + (attempt.newcomer ? "1" : ""));
  result.push_back(std::string("WEFT_HAS_STATE=") + (attempt.has_state ? "1" : ""));
  if (!is_variable_set("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    result.push_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  const int threads = threads_per_rank(job.local_world);
  if (threads > 0 && !is_variable_set("OMP_NUM_THREADS"))
    result.push_back("OMP_NUM_THREADS=" + text(threads));
  // Never that of another job: a launcher started by a rank has its own secret, or none.
  result.push_back("WEFT_SECRET_FD=" + (attempt.secret_fd < 0 ? "" : text(attempt.secret_fd)));
  result.push_back("WEFT_STORE=" + attempt.store);
  result.push_back("WEFT_PS_SERVERS=" + (job.servers > 0 ? text(job.servers) : ""));
  result.push_back("WEFT_PS_FOLDER=" + job.servers_folder);
  result.push_back("WEFT_LIVE_FD=" + (attempt.live_fd < 0 ? "" : text(attempt.live_fd)));
  result.push_back("WEFT_LINK_FD=" + (attempt.link_fd < 0 ? "" : text(attempt.link_fd)));
  result.push_back("WEFT_PAGE_FD=" + (attempt.page_fd < 0 ? "" : text(attempt.page_fd)));
  result.push_back(std::string("WEFT_LAUNCHER_REPORTS=") + (attempt.reports ? "1" : "0"));
  return result;
}

std::vector<std::string> command_line(const std::vector<std::string>& program) {
  if (program.empty())
    throw Error(Errc::kBadConfig, "no program given; for example: weft run -n 2 ./train",
                {"launch", -1, -1});
  std::vector<std::string> line = program;
  if (std::filesystem::path(program[0]).extension() == ".py") line.insert(line.begin(), "python3");
  return line;
}

}  // namespace weft::launch::internal
