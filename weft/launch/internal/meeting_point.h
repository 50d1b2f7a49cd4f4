// Where the store processes of the nodes meet: at --rdzv-endpoint HOST:PORT. The node that can
// listen there is the first one; the others find it, and listen at an address of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/launch/process.h"

namespace weft::launch::internal {

struct MeetingPoint {
  Fd listener;
  std::string address;             // "host:port" of the listener
  std::vector<std::string> seeds;  // the endpoint, unless this is the first node
  std::uint32_t number = 0;        // of this node's store process; 0: the first node
};

// Throws Error(kBadConfig) if the host has no address that other nodes reach, and kUnavailable
// without a free port.
MeetingPoint find_meeting_point(const std::string& host, int port);
// This host's address on the way to another one, without a port. Throws as above.
std::string own_host(const std::string& host, int port);

}  // namespace weft::launch::internal
