// weft::train::dataset() makes the data of a Task from a torch::data dataset.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <memory>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/train/task.h"

namespace weft::train {

// Takes any dataset of torch::data with random access and a size, stacked or not: MNIST, your own
// class with get(), either with .map(…). One thread at a time reads samples, in weft's own order,
// which repeats in a resumed run.
// Throws Error(kInvalidArgument) for an empty dataset, and for one that does not know its size.
template <class Dataset>
data::Source dataset(Dataset given) {
  const auto set = std::make_shared<Dataset>(std::move(given));
  const auto size = set->size();
  WEFT_REQUIRE(size.has_value(),
               "dataset: it does not know its size; give samples(size, function) instead");
  return samples(static_cast<std::int64_t>(*size), [set](const std::vector<std::int64_t>& indices) {
    std::vector<std::size_t> asked(indices.begin(), indices.end());
    auto batch = set->get_batch(asked);
    if constexpr (requires {
                    batch.data;
                    batch.target;
                  }) {  // Stack<> has been mapped
      return std::pair<at::Tensor, at::Tensor>(batch.data, batch.target);
    } else {
      std::vector<at::Tensor> inputs, targets;
      for (const auto& example : batch) {
        inputs.push_back(example.data);
        targets.push_back(example.target);
      }
      return std::pair<at::Tensor, at::Tensor>(at::stack(inputs), at::stack(targets));
    }
  });
}

}  // namespace weft::train
