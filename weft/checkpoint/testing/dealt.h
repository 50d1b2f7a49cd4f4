// For tests: states divided over ranks in different ways. Not installed.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/checkpoint/sharded.h"

namespace weft::checkpoint {

struct Named {
  std::string name;
  at::Tensor tensor;
};

// Tensors of several shapes and dtypes; `seed` changes every value.
inline std::vector<Named> some_tensors(std::int64_t seed, std::int64_t rows = 37) {
  const auto values = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return (at::arange(c10::multiply_integers(sizes), at::kLong).mul_(31).add_(seed).remainder(127))
        .to(type)
        .view(sizes)
        .clone();
  };
  return {{"embedding.weight", values({rows, 6}, at::kFloat)},
          {"blocks.0.weight", values({5, 7, 3}, at::kFloat)},
          {"blocks.0.bias", values({7}, at::kFloat)},
          {"blocks.1.weight", values({4, 9}, at::kBFloat16)},
          {"blocks.1.mask", values({3}, at::kInt).gt(60)},
          {"steps", values({}, at::kLong)},
          {"double", values({2, 2}, at::kDouble)}};
}

// Divides as sharded data parallelism does: each rank has the same number of consecutive elements
// of each tensor.
inline Slices flat_shards(const std::vector<Named>& tensors, int rank, int ranks) {
  Slices mine;
  for (const Named& one : tensors) {
    const std::int64_t all = one.tensor.numel(), part = (all + ranks - 1) / ranks;
    const std::int64_t begin = std::min(all, part * rank), count = std::min(part, all - begin);
    const auto sizes = one.tensor.sizes().vec();
    const Rectangle whole{one.name, sizes, std::vector<std::int64_t>(sizes.size(), 0), sizes};
    for (Slice& slice :
         slices_of_range(whole, begin, one.tensor.reshape({-1}).narrow(0, begin, count)))
      mine.push_back(std::move(slice));
  }
  return mine;
}

// Divides as tensor parallelism does: along the last dimension.
inline Slices column_shards(const std::vector<Named>& tensors, int rank, int ranks) {
  Slices mine;
  for (const Named& one : tensors) {
    Slice slice = whole_slice(one.name, one.tensor);
    const std::int64_t last = one.tensor.dim() - 1;
    if (last < 0) {
      if (rank == 0) mine.push_back(slice);
      continue;
    }
    const std::int64_t all = one.tensor.size(last), begin = all * rank / ranks;
    slice.offset.back() = begin;
    slice.tensor = one.tensor.narrow(last, begin, all * (rank + 1) / ranks - begin);
    if (slice.tensor.numel() > 0) mine.push_back(slice);
  }
  return mine;
}

// All ranks have the whole tensors; each tensor is given to one rank to write.
inline Slices whole_shards(const std::vector<Named>& tensors, int rank, int ranks) {
  Slices all;
  for (const Named& one : tensors) all.push_back(whole_slice(one.name, one.tensor));
  return deal(std::move(all), rank, ranks);
}

using Shard = Slices (*)(const std::vector<Named>& tensors, int rank, int ranks);

inline Shards shards_of(std::int64_t step, const std::vector<Named>& tensors, Shard shard, int rank,
                        int ranks) {
  return {.step = step,
          .parts = {{"model", shard(tensors, rank, ranks)}},
          .state = {{"epoch", std::to_string(step)}}};
}

}  // namespace weft::checkpoint
