// Where parameter servers run. Server i + 1 has the copy of the shard of server i, so neighbors are
// on different nodes where there are enough.
#include <algorithm>
#include <tuple>

#include "weft/base/error.h"
#include "weft/launch/internal/membership_update.h"
#include "weft/launch/internal/server_policy.h"

namespace weft::launch::internal {

// Neighbors of the server on this node. None, where shards have no copies.
int MembershipUpdate::neighbors_on(int number, int server) const {
  if (!policy_.server_backup) return 0;
  const int count = policy_.servers;
  const std::set<int> neighbors = {(server + 1) % count, (server + count - 1) % count};
  return static_cast<int>(std::count_if(neighbors.begin(), neighbors.end(), [&](int other) {
    const auto at = membership_.servers.find(other);
    return other != server && at != membership_.servers.end() && at->second == number;
  }));
}

// The node with the fewest neighbors of the server, then the fewest servers; of several the one
// that joined first.
std::optional<int> MembershipUpdate::node_for(int server) const {
  std::optional<std::tuple<int, std::ptrdiff_t, int>> best;
  for (const auto& [number, report] : nodes_) {
    if (is_unused(number)) continue;
    std::ptrdiff_t servers = 0;
    for (const auto& [other, at] : membership_.servers) servers += at == number && other != server;
    const auto candidate = std::tuple(neighbors_on(number, server), servers, number);
    best = best ? std::min(*best, candidate) : candidate;
  }
  return best ? std::optional(std::get<2>(*best)) : std::nullopt;
}

void MembershipUpdate::place_servers() {
  const bool begins = membership_.servers.empty();
  // Servers without a node do not count as neighbors.
  std::set<int> homeless;
  for (int server = 0; server < policy_.servers; ++server) {
    const auto at = membership_.servers.find(server);
    const bool stays = at != membership_.servers.end() && node(at->second) != nullptr &&
                       !membership_.leaving.contains(at->second);
    if (!stays) homeless.insert(server);
  }
  for (const int server : homeless) membership_.servers.erase(server);
  for (const int server : homeless) {
    const auto to = node_for(server);
    if (!to) continue;  // until a node comes
    membership_.servers[server] = *to;
    if (!begins)
      note(server_name(server) + " of the parameter server is started on node " +
           std::to_string(*to));
  }
  if (homeless.empty()) separate_servers();
}

// After the loss of a node, two copies of a shard may be on one node. Once another node has come,
// one of them moves there, if all shards have two copies.
void MembershipUpdate::separate_servers() {
  for (const auto& [server, at] : membership_.servers) {
    const NodeReport* const here = node(at);
    if (!policy_.server_backup || here == nullptr || !here->replicated.contains(server)) return;
  }
  if (recovers()) return;
  for (const auto& [server, at] : membership_.servers) {
    const int beside = neighbors_on(at, server);
    const auto to = beside > 0 ? node_for(server) : std::nullopt;
    if (!to || neighbors_on(*to, server) >= beside) continue;
    note(server_name(server) + " of the parameter server moves from node " + std::to_string(at) +
         " to node " + std::to_string(*to) + ", so that copies are on different nodes");
    membership_.servers[server] = *to;
    return;
  }
}

// True if no other node has a copy of a shard.
bool MembershipUpdate::loses_a_shard_without(const std::set<int>& nodes) const {
  return std::any_of(
      membership_.servers.begin(), membership_.servers.end(), [&](const auto& entry) {
        const auto copy = membership_.servers.find((entry.first + 1) % policy_.servers);
        const bool has_copy = policy_.server_backup && copy != membership_.servers.end() &&
                              !nodes.contains(copy->second);
        return nodes.contains(entry.second) && !has_copy;
      });
}

void MembershipUpdate::end_if_servers_are_lost() {
  for (const auto& [number, at] : nodes_) {
    if (!at->servers_lost.empty())
      end(at->servers_lost + " (node " + std::to_string(number) + ")", exit_code(Errc::kPeerLost));
  }
}

}  // namespace weft::launch::internal
