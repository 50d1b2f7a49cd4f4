// Evaluates the model of a task: metrics over the blocks of its test data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/data/loader.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/train/internal/rank_data.h"
#include "weft/train/task.h"

namespace weft::train {

// Result over a whole data set. Each sample counts once at any number of ranks.
struct Evaluation {
  std::int64_t samples = 0;  // 0: nothing was evaluated
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics;  // by name, without the loss
  double metric(const std::string& name) const;         // 0 without it
};

namespace internal {

class Evaluator {
 public:
  struct Settings {
    std::int64_t block = 1;   // samples of a block
    std::int64_t passes = 1;  // a replica needs as many samples
    int prefetch = 0;         // batches
  };
  // All but `settings` must outlive it.
  Evaluator(const Task& task, const Mesh& mesh, parallel::ParallelModel& model,
            const RankData& rank_data, Settings settings);

  // Names of the metrics, the loss among them.
  std::vector<std::string> metrics() const;
  // Sums over blocks of samples in a fixed order. Collective.
  Evaluation evaluate();

 private:
  at::Tensor measure(const data::Batch& batch, bool mine);

  const data::Source& test_;
  const std::vector<Metric> metrics_;  // including the loss
  const Mesh mesh_;
  parallel::ParallelModel& model_;
  const RankData& data_;
  const Settings settings_;
};

}  // namespace internal
}  // namespace weft::train
