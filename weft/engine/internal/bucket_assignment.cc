#include "weft/engine/internal/bucket_assignment.h"

#include <algorithm>

#include "weft/engine/internal/index.h"

namespace weft::engine::internal {
namespace {

// Elements of a cache line: chunks begin on lines, so that no two ranks write into one.
constexpr std::int64_t kLine = 16;

void cut(BucketAssignment& assignment, const std::vector<std::int64_t>& sizes,
         std::int64_t chunk_elements) {
  for (int bucket = 0; bucket < static_cast<int>(assignment.buckets.size()); ++bucket) {
    Chunk chunk{bucket, {}};
    std::int64_t filled = 0;
    const auto flush = [&] {
      if (!chunk.pieces.empty()) assignment.chunks.push_back(std::move(chunk));
      chunk = Chunk{bucket, {}};
      filled = 0;
    };
    for (int param : assignment.buckets[index(bucket)]) {
      const std::int64_t size = sizes[index(param)];
      for (std::int64_t at = 0; at < size;) {
        const std::int64_t room = std::max(kLine, (chunk_elements - filled) / kLine * kLine);
        const std::int64_t end = std::min(size, at + room);
        chunk.pieces.push_back({param, at, end});
        filled += end - at;
        at = end;
        if (filled >= chunk_elements) flush();
      }
    }
    flush();
  }
}

}  // namespace

BucketAssignment assign_buckets(const std::vector<std::int64_t>& sizes,
                                const std::vector<int>& order, const BucketLimits& options) {
  BucketAssignment assignment;
  assignment.bucket_of.resize(sizes.size());
  std::int64_t filled = 0;
  for (int param : order) {
    const std::int64_t full =
        assignment.buckets.size() <= 1 ? options.first_bucket_elements : options.bucket_elements;
    if (assignment.buckets.empty() || filled >= full) {
      assignment.buckets.emplace_back();
      filled = 0;
    }
    assignment.buckets.back().push_back(param);
    assignment.bucket_of[index(param)] = static_cast<int>(assignment.buckets.size()) - 1;
    filled += sizes[index(param)];
  }
  if (options.chunk_elements > 0) cut(assignment, sizes, options.chunk_elements);
  return assignment;
}

}  // namespace weft::engine::internal
