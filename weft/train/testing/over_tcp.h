// For the tests of training: ranks that are threads and communicate over TCP, as on several hosts.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/backend.h"
#include "weft/comm/group.h"

namespace weft::train::internal {

// Returns a group of the same ranks over TCP. Their rendezvous is `store`. Collective.
inline Group over_tcp(const Group& threads, const c10::intrusive_ptr<c10d::HashStore>& store,
                      bool ordered_sums) {
  const comm::BackendOptions options{.transport = comm::Transport::kTcp,
                                     .ordered_sums = ordered_sums,
                                     .timeout = std::chrono::seconds(60)};
  return Group(comm::make_backend(store, threads.rank(), threads.size(), options), "tcp");
}

}  // namespace weft::train::internal
