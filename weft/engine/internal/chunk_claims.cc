#include "weft/engine/internal/chunk_claims.h"

#include <numeric>
#include <utility>

namespace weft::engine::internal {
namespace {

// Parameters become visible to peers in units of about 64 KiB, and are processed in chunks of 128
// KiB. The gradients, weights and state of a chunk fit into a core's own cache, and one claim is
// cheap compared with a chunk.
constexpr std::int64_t kUnitElements = 16 << 10;
constexpr std::int64_t kChunkElements = 32 << 10;

}  // namespace

int ChunkClaims::most_chunks(const std::vector<std::int64_t>& sizes) {
  auto chunks = static_cast<std::int64_t>(sizes.size());
  for (const std::int64_t size : sizes) chunks += size / (kChunkElements / 2) + 1;
  return static_cast<int>(chunks);
}

ChunkClaims::ChunkClaims(Ledger& ledger, std::vector<std::int64_t> sizes)
    : ledger_(ledger), sizes_(std::move(sizes)) {
  std::vector<int> order(sizes_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  reassign(order);
}

void ChunkClaims::agree(const std::vector<int>& order) {
  agreed_ = true;
  reassign(order);
}

void ChunkClaims::reassign(const std::vector<int>& order) {
  assignment_ = assign_buckets(sizes_, order,
                               {.bucket_elements = kUnitElements,
                                .first_bucket_elements = kUnitElements,
                                .chunk_elements = kChunkElements});
  own_done_.assign(assignment_.chunks.size(), 0);
  first_chunk_.assign(assignment_.buckets.size() + 1, 0);
  for (const auto& chunk : assignment_.chunks) ++first_chunk_[index(chunk.bucket) + 1];
  for (std::size_t unit = 0; unit < assignment_.buckets.size(); ++unit)
    first_chunk_[unit + 1] += first_chunk_[unit];
}

// Each rank owns a run of consecutive chunks of a unit. Units with a single chunk are assigned
// round-robin.
int ChunkClaims::owner(int chunk) const {
  const int unit = assignment_.chunks[index(chunk)].bucket, world = ledger_.host().world();
  const int first = first_chunk(unit), count = first_chunk(unit + 1) - first;
  return count == 1 ? unit % world : (chunk - first) * world / count;
}

bool ChunkClaims::take(int chunk, const Phase& phase, bool all) {
  if (!phase.each_rank)
    return (all || owner(chunk) == ledger_.host().rank()) && ledger_.claim(chunk, phase.number);
  return std::exchange(own_done_[index(chunk)], ledger_.step()) != ledger_.step();
}

bool ChunkClaims::taken(int chunk, const Phase& phase) const {
  return phase.each_rank ? own_done_[index(chunk)] == ledger_.step()
                         : ledger_.claimed(chunk, phase.number);
}

int ChunkClaims::first_open(const Phase& phase, int unit) const {
  for (int u = unit; u < units(); ++u)
    for (int chunk = first_chunk(u); chunk < first_chunk(u + 1); ++chunk)
      if (!taken(chunk, phase)) return u;
  return -1;
}

}  // namespace weft::engine::internal
