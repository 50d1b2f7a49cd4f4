// What is trained: a model, its data, and what it is measured by.
//
//   Task task(Net(), [](const Tensor& y, const Tensor& t) { return F::cross_entropy(y, t); });
//   task.train = dataset(torch::data::datasets::MNIST("data"));
//   task.metrics.push_back({"accuracy", [](const Tensor& y, const Tensor& t) { return y.argmax(1).eq(t).to(torch::kDouble).mean(); }});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/data/source.h"
#include "weft/parallel/compose/model.h"

namespace weft::train {

// A number of an evaluation.
struct Metric {
  std::string name;
  // Of some samples, one at least: its mean over them; or two numbers, the sum and the count of what it is a mean of (words right, words).
  // Evaluated without gradients, on the ranks that have the outputs. A metric "loss" takes the place of the model's loss.
  parallel::OutputFunction of;
};

struct Task {
  Task() = default;
  // A module (blocks_of(), compose/modules.h) or a list of blocks, and its loss: the mean over the samples.
  Task(parallel::BlockModel model_, parallel::OutputFunction loss) : model(std::move(model_)) { model.loss = std::move(loss); }

  parallel::BlockModel model;
  data::Source train, test;  // a test of size 0: nothing is evaluated
  std::vector<Metric> metrics = {};
};

// Samples in memory: sample i is x[i], with the target y[i]. Throws Error(kInvalidArgument) where they have not equally many, or none.
data::Source samples(const at::Tensor& x, const at::Tensor& y);
// Batches that a function makes: `make` gets the numbers of some samples below `size`, one at least, and gives {input, target} of these, in
// their order. It may be called by another thread, one call at a time.
data::Source samples(std::int64_t size, std::function<std::pair<at::Tensor, at::Tensor>(const std::vector<std::int64_t>& indices)> make);

}  // namespace weft::train
