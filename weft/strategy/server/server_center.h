// A center (center.h) on a parameter server (weft/ps), for workers on several hosts.
//
//   make_rule(strategy, {…, .make_center = [](const Group& workers, const at::Tensor& like) {
//     return strategy::server_center(workers, like, {.interface = "10.0.0.0/8"});
//   }});
//
// With `weft run --servers N`, the vector and the clocks lie on the servers of the job (ps/job.h).
// The loss of a server then holds the workers for less than a second, if another one has the copy.
// These servers may keep a center for each part of a model (ServerCenterOptions::all).
//
// Otherwise the first worker of each host, of at most eight hosts, has a server with a part of the
// vector and of the clocks. These servers have no backup: if a worker with a server is lost, calls
// of the others throw kPeerLost, and training recovers as with other strategies.
//
// Workers of its host reach a server through shared memory, others over TCP.
#pragma once

#include <memory>

#include "weft/strategy/center.h"

namespace weft::strategy {

// A center of zeros. Throws Error(kBadConfig) unless `like` is float32, and as ps::Server and
// ps::Client do: servers of the job keep the parts that their first clients had. Collective over
// the workers and ServerCenterOptions::all.
std::unique_ptr<Center> server_center(const Group& workers, const at::Tensor& like,
                                      const ServerCenterOptions& options = {});

// For train::Components.
const ServerComponent& server_component();

}  // namespace weft::strategy
