// Test helpers: compare the results of ranks with those of one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel::tensor_parity {

using comm::expect_close;
using comm::wave;

constexpr std::uint64_t kSeed = 11;

inline void on_ranks(int ranks, const std::function<void(const TensorParallel&)>& fn) {
  replicate(ranks, [&](Group group) { fn(TensorParallel(std::move(group), kSeed)); });
}

}  // namespace weft::parallel::tensor_parity
