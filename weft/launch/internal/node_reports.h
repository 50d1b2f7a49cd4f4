// After a failure, the launchers of all nodes exchange through the job's store how their ranks
// ended, so that each names the same rank.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

struct NodeReportsOptions {
  std::string store_host;
  int store_port = 0;
  std::string prefix;  // of the keys: one for each job and restart
  int nodes = 1;
  int node = 0;  // this node; node 0 hosts the store
  // How long to wait for the other nodes. Their ranks may still run when this node's have ended.
  std::chrono::milliseconds wait{};
  // Added to the wall clock of this node, for tests.
  std::chrono::milliseconds clock_error{};
};

// Publishes the situation of this node. If one of its ranks has failed, waits for the other nodes
// and returns the situation of the whole job (first_rank 0). Ranks of a node that does not answer
// are of unknown state (nullopt). The wall clocks of the nodes may differ. Without a failure, or if
// the store cannot be reached, returns `mine`.
Situation exchange_reports(const Situation& mine, const NodeReportsOptions& options);

// A situation as text: one JSON object. Times are those of the wall clock, plus `clock_error`.
std::string to_text(const Situation& situation, std::chrono::milliseconds clock_error = {});
// Adds the ranks of such a text to `whole`. `ahead`: by so much its wall clock is ahead of this
// one. Does nothing for other text.
void add_text(const std::string& text, Situation& whole, std::chrono::milliseconds ahead = {});

}  // namespace weft::launch::internal
