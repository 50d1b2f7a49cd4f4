// Divides a module's parameters into buckets, in the order in which their gradients become ready,
// and buckets into chunks of work.
//
// Pure: every rank computes the same assignment from the same sizes and order.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine::internal {

// Elements [begin, end) of a parameter.
struct Stretch {
  int param = 0;
  std::int64_t begin = 0, end = 0;
};

struct Chunk {
  int bucket = 0;
  std::vector<Stretch> pieces;
};

struct BucketAssignment {
  std::vector<std::vector<int>> buckets;  // parameters, in the order of `order`
  std::vector<int> bucket_of;             // by parameter
  std::vector<Chunk> chunks;              // in the order of buckets
};

struct BucketLimits {
  std::int64_t bucket_elements = 0;        // size of a full bucket
  std::int64_t first_bucket_elements = 0;  // size of the first bucket
  std::int64_t chunk_elements = 0;         // 0: no chunks
};

// `sizes`: elements of each parameter; `order`: parameters as their gradients become ready. A
// parameter is never split over buckets.
BucketAssignment assign_buckets(const std::vector<std::int64_t>& sizes,
                                const std::vector<int>& order, const BucketLimits& options);

}  // namespace weft::engine::internal
