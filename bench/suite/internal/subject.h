// The models that the benches train, by name and divided into parts, and the batch of each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/models/gpt.h"
#include "weft/parallel/tensor/context.h"

namespace weft::cli::bench_internal {

struct Part {
  std::shared_ptr<torch::nn::Module> module;  // null: a part without a module
  std::function<at::Tensor(const at::Tensor&)> forward;
};

struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& inputs)> forward;
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& labels)> loss;  // mean
  // Only of gpt-128, gpt-384 and resnet18. In sequence, the parts compute forward().
  std::vector<Part> parts;
};

// Models: mlp, cnn and resnet18 on 1x28x28; gpt-128 (4 layers of width 128, 4 heads) and gpt-384 (6
// layers of width 384, 6 heads) with 96 tokens and sequences of 128. The initial values are the
// same on every rank. `tp`: the layers of a GPT are split over its ranks.
Subject make_subject(const std::string& model, const parallel::TensorParallel& tp = {});
models::GptOptions gpt_options(const std::string& model);

struct Batch {
  at::Tensor inputs, labels;
};
// A random batch with a seed that depends on the rank.
Batch fixed_batch(const std::string& model, int size, int rank);
// The batches of ranks 0 to `ranks` - 1, concatenated.
Batch joined_batch(const std::string& model, int size, int ranks);

// A group of world size 1.
comm::Group group_of_one();

}  // namespace weft::cli::bench_internal
