// A center (center.h) on a parameter server (weft/ps), for workers on several hosts.
//
//   make_rule(strategy, {…, .make_center = [](const Group& workers, const at::Tensor& like) {
//     return strategy::server_center(workers, like, {.interface = "10.0.0.0/8"});
//   }});
//
// The first worker of each host, of at most eight hosts, has a server with a part of the vector and
// of the clocks. Workers of its host reach it through shared memory, others over TCP. Servers have
// no backup: if a worker with a server is lost, calls of the others throw kPeerLost, and training
// recovers as with other strategies.
#pragma once

#include <memory>
#include <string>

#include "weft/strategy/center.h"

namespace weft::strategy {

struct ServerCenterOptions {
  // Where servers listen: an address, a network or the name of an interface, as in net/tcp/tcp.h.
  std::string interface = "127.0.0.1";
};

// A center of zeros. Throws Error(kBadConfig) unless `like` is float32, and as ps::Server and
// ps::Client do. Collective.
std::unique_ptr<Center> server_center(const Group& workers, const at::Tensor& like,
                                      const ServerCenterOptions& options = {});

}  // namespace weft::strategy
