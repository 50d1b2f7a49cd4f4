// What the benches train: a model by name, in the parts that take it apart, and the batch of each
// rank.
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
  std::shared_ptr<torch::nn::Module> module;  // null: it has no module of its own
  std::function<at::Tensor(const at::Tensor&)> forward;
};

struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& inputs)> forward;
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& labels)> loss;  // the mean
  // One after the other they are forward(); of gpt-128, gpt-384 and resnet18.
  std::vector<Part> parts;
};

// mlp, cnn and resnet18 on 1x28x28, gpt-128 (4 layers of width 128, 4 heads) and gpt-384 (6 of 384,
// 6 heads) with 96 tokens and sequences of 128. The same initial values whoever asks. `tp`: the
// layers of a GPT are split over its ranks.
Subject make_subject(const std::string& model, const parallel::TensorParallel& tp = {});
models::GptOptions gpt_options(const std::string& model);

struct Batch {
  at::Tensor inputs, labels;
};
// From a seed, another one for each rank.
Batch fixed_batch(const std::string& model, int size, int rank);
// Those of ranks 0 to `ranks` - 1 as one.
Batch joined_batch(const std::string& model, int size, int ranks);

// One that knows no other rank.
comm::Group group_of_one();

}  // namespace weft::cli::bench_internal
