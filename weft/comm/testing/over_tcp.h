// Tests' helper: ranks as threads of one process that share no memory.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/backend.h"
#include "weft/comm/replicate.h"

namespace weft::comm {

// As replicate(), with TCP between the ranks, as on several hosts.
inline void replicate_over_tcp(int ranks, const std::function<void(Group)>& fn,
                               BackendOptions options = {.timeout = std::chrono::seconds(60)}) {
  options.transport = Transport::kTcp;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  replicate(ranks, [&](const Group& threads) {
    fn(Group(make_backend(store, threads.rank(), threads.size(), options), "tcp"));
  });
}

}  // namespace weft::comm
