// Task: all that a Trainer needs to train: a model, its loss, its data and its metrics.
//
//   Task task(Net(), [](const Tensor& y, const Tensor& t) { return F::cross_entropy(y, t); });
//   task.train = dataset(torch::data::datasets::MNIST("data"));
//   task.metrics.push_back({"accuracy", [](const Tensor& y, const Tensor& t) {
//     return y.argmax(1).eq(t).to(torch::kDouble).mean();
//   }});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/slice.h"
#include "weft/data/source.h"
#include "weft/parallel/compose/model.h"

namespace weft::train {

// A number that an evaluation reports.
struct Metric {
  std::string name;
  // Value for some samples, at least one: the mean over them, or two numbers, a sum and a count,
  // whose quotient is the metric (words right, words). Computed without gradients, on the ranks
  // that have the outputs. A metric named "loss" replaces the model's loss.
  parallel::OutputFunction of;
};

struct Task {
  Task() = default;
  // Takes a module (blocks_of(), compose/modules.h) or a list of blocks, and its loss: the mean
  // over the samples.
  Task(parallel::BlockModel model_, parallel::OutputFunction loss) : model(std::move(model_)) {
    model.loss = std::move(loss);
  }

  parallel::BlockModel model;
  data::Source train, test;  // Data sets. A test set of size 0 is not evaluated.
  std::vector<Metric> metrics = {};
  // FLOPs that a sample costs in forward and backward, without recomputation. With
  // Options::peak_tflops, metrics get the MFU. 0: unknown.
  double flops_per_sample = 0;
  // Opens weights to start from, by parameter names of the whole model, in a run that does not
  // resume. Called on each rank. Empty: initial values of the blocks.
  std::function<std::unique_ptr<checkpoint::SliceSource>()> start = {};
};

// Data in memory: sample i is x[i], with target y[i]. Throws Error(kInvalidArgument) if x and y
// differ in samples or have none.
data::Source samples(const at::Tensor& x, const at::Tensor& y);
// Data that a function makes. `make` gets the numbers of some samples below `size`, at least one,
// and returns {input, target} of these samples, in their order. Another thread may call it, one
// call at a time.
data::Source samples(
    std::int64_t size,
    std::function<std::pair<at::Tensor, at::Tensor>(const std::vector<std::int64_t>& indices)>
        make);

}  // namespace weft::train
