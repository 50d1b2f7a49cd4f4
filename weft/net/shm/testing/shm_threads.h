// Endpoints of shared memory for tests whose ranks are threads. Not installed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "weft/net/shm/shm.h"

namespace weft::net {

// All ranks in this process: the same code over ordinary memory.
inline std::vector<std::unique_ptr<Endpoint>> make_shm_threads(int world, std::uint32_t epoch = 0,
                                                               std::size_t ring_bytes = 0) {
  const std::size_t bytes = shm_region_bytes(world, ring_bytes);
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]());
  const std::span<std::byte> region(memory.get(), bytes);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < world; ++rank)
    endpoints.push_back(make_shm({rank, world, epoch, region, memory, {}, ring_bytes}));
  return endpoints;
}

}  // namespace weft::net
