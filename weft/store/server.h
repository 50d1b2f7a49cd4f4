// The store process of a node: serves the ranks and the launcher of its node, and replicates the
// store with the store processes of the other nodes.
//
//   ranks, launcher ── Unix socket ──► store process of node 0 ◄── TCP ──► the one of node 1 …
//                                          │ records
//                                      journal: anonymous file that the launcher holds
//
// A majority of at most 7 nodes decides; further nodes follow the log, and decide when one of the 7
// is lost. If the number of deciding nodes is even, half of them decide if the one that joined
// first is among them. So of two nodes, the store survives the loss of the second one only.
//
// The launcher holds the sockets and the journal. If it starts a new process after this one has
// ended, that process continues with all data, and waiting clients notice a pause only. A node
// whose host is lost comes back as a new member.
//
// A lease ends too early by at most 200 ms for each jump of a host's clock, and else never.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/file.h"

namespace weft::store {

struct ServerOptions {
  UniqueFd clients;   // listening Unix socket (listen_locally() in client.h)
  UniqueFd lifeline;  // the process ends when this socket or pipe is closed by the launcher
  UniqueFd journal;   // file for reading and writing, empty at first

  // Number of this node, from 0. Only node 0 founds a store.
  std::uint32_t node = 0;
  // Number of nodes that must be there before node 0 founds the store: all nodes of the job.
  std::uint32_t founders = 1;

  // Several nodes only:
  UniqueFd peers;                  // listening TCP socket
  std::string address;             // "host:port" at which other nodes reach it
  std::vector<std::string> seeds;  // addresses of other nodes; one that is reached suffices
  std::string job;                 // processes of another job are refused
  std::optional<std::array<std::byte, 32>> secret;  // of the job
};

// Serves until the lifeline closes. Call it from the main thread of a process without other
// threads. Throws Error(kUnavailable) if the journal cannot be written, and Error(kCorrupt) if it
// holds what no store process has written.
void serve(ServerOptions options);

}  // namespace weft::store
