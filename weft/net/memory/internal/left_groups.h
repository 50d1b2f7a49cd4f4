// Memory that this process shared with a group which it has left before the others. They may still
// use it.
#pragma once

#include <functional>
#include <vector>

#include "weft/net/memory/heap.h"
#include "weft/net/memory/internal/links.h"

namespace weft::net::internal {

struct LeftGroup {
  Heap* heap = nullptr;
  std::vector<void*> blocks;  // of the heap
  std::vector<Link> links;    // to the others; closed with the group
  // True if the peer touches the blocks no more. Called until it is true for all peers.
  std::function<bool(const Link& link, int peer)> has_ended;
};

// Keeps the blocks until all peers have ended: release_left_groups() (host.h) frees them then.
void retire(LeftGroup group);

}  // namespace weft::net::internal
