#include "weft/comm/environment.h"

#include <unistd.h>

#include "weft/base/process/host.h"
#include "weft/base/text/numbers.h"
#include "weft/comm/internal/discovery.h"
#include "weft/comm/internal/launchers.h"

namespace weft::comm {

using internal::bad_discovery;
using internal::Claim;
using internal::Found;
using internal::kMpi;
using internal::kSlurm;
using internal::kTorchrun;
using internal::port_of_job;
using internal::read_all;

namespace {

constexpr int kStaticPort = 29500;  // torchrun's default

// FNV-1a: std::hash may differ between two builds of the program.
std::size_t hash(const std::string& text) {
  std::uint64_t value = 14695981039346656037ull;
  for (const unsigned char c : text) value = (value ^ c) * 1099511628211ull;
  return value;
}

// Whether `other` is compatible with the winner. Launchers are often nested, so two differences are
// allowed: torchrun started once per node by mpirun or srun (the outer launcher then counts nodes),
// and mpirun under Slurm (the Slurm step holds mpirun's daemons).
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
                    " disagree; unset the variables of the wrong one");
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
  if (claim.world < 1) bad_discovery(claim.says() + ": the world size must be at least one");
  if (!in(claim.rank, claim.world))
    bad_discovery(claim.says() + ": ranks are numbered from 0 to " +
                  std::to_string(claim.world - 1));
  const int local_world = claim.local_world.value_or(claim.world);
  if (local_world < 1 || local_world > claim.world ||
      !in(claim.local_rank.value_or(0), local_world)) {
    bad_discovery(claim.says() + ": local rank " + std::to_string(claim.local_rank.value_or(0)) +
                  " of " + std::to_string(local_world) + " is out of range");
  }
}

// Chooses the address of the store: the program's flag, MASTER_*, or the source's own. On one host:
// loopback, and a port derived from the job's id.
void place_store(const Environment& env, const IdentityOptions& options, const Claim& claim,
                 Identity& me) {
  const bool one_host = claim.world == 1 || claim.nodes == 1 || claim.local_world == claim.world;
  auto addr = options.master_addr      ? options.master_addr
              : env.has("MASTER_ADDR") ? env.get("MASTER_ADDR")
                                       : claim.master_addr;
  if (addr && claim.world > 1) addr = parse_host("MASTER_ADDR", *addr, "MASTER_PORT");
  const bool knows_port =
      claim.run_id || claim.master_port || options.master_port || env.has("MASTER_PORT");
  me.mpi = claim.mpi;
  me.meets_through_mpi = claim.mpi && me.world > 1 && !addr && !(one_host && knows_port);
  if (!addr && !one_host && !claim.mpi) {
    bad_discovery(claim.says() +
                  ": the job spans several hosts and the address of rank 0 is unknown; set "
                  "MASTER_ADDR to rank 0's host (mpirun: -x MASTER_ADDR=HOST)");
  }
  const bool derive = one_host && !addr && claim.run_id;
  std::optional<int> port =
      options.master_port ? std::optional<int>(*options.master_port) : env.number("MASTER_PORT");
  fill(port, claim.master_port);
  if (!port) port = derive ? port_of_job(hash(*claim.run_id)) : me.world == 1 ? 0 : kStaticPort;
  if (*port > 65535)
    bad_discovery("MASTER_PORT=" + std::to_string(*port) + ": the highest port is 65535");
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
  const auto value = parse_count(*text);
  if (!value) bad_discovery(name + "=" + *text + " is not a whole number");
  return value;
}

Identity discover(const Environment& env, const IdentityOptions& options) {
  // If rank and world are given, the variables are ignored.
  const auto found = options.rank && options.world ? std::vector<Found>() : read_all(env);
  Claim claim{"alone", "rank", "world", 0, 1, 0, 1, 0, 1};
  if (!found.empty()) {
    claim = settle(found);
  } else if (options.world.value_or(1) > 1) {
    claim.local_rank = claim.local_world = claim.node_rank = claim.nodes = std::nullopt;
    claim.node_level = true;
    if (!options.rank)
      bad_discovery("the world size " + std::to_string(*options.world) +
                    " is given without a rank");
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
              ? " (one rank per node: no local rank was given)"
              : " (local " + std::to_string(local_rank) + " of " + std::to_string(local_world) +
                    ", node " + std::to_string(node_rank) + ")";
  if (meets_through_mpi)
    line += ", rendezvous through MPI";
  else if (master_port != 0)
    line += ", store at " + master_addr + ":" + std::to_string(master_port) +
            (store_is_hosted_elsewhere ? " (the launcher's)" : "");
  line += ", from " + source;
  if (run_id != "none") line += ", run " + run_id;
  if (restart_count > 0) line += ", restart " + std::to_string(restart_count);
  return line;
}

}  // namespace weft::comm
