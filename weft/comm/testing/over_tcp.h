// Tests' helper: ranks as threads of one process that share no memory.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/backend.h"
#include "weft/comm/replicate.h"

namespace weft::comm {

// As replicate(), with TCP between the ranks.
inline void replicate_over_tcp(int ranks, const std::function<void(Group)>& fn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  replicate(ranks, [&](const Group& threads) {
    const BackendOptions options{.transport = Transport::kTcp, .timeout = std::chrono::seconds(60)};
    fn(Group(make_backend(store, threads.rank(), threads.size(), options), "tcp"));
  });
}

}  // namespace weft::comm
