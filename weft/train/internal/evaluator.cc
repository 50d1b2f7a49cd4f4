#include "weft/train/internal/evaluator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::train {
namespace internal {
namespace {

// float64 [2]: the sum and the number of samples.
at::Tensor sum_and_count(const at::Tensor& value, std::int64_t samples, const std::string& name) {
  WEFT_REQUIRE(value.defined() && (value.numel() == 1 || value.numel() == 2),
               "the metric " + name +
                   " gives no number: return the mean over the samples, or the sum and the count");
  const at::Tensor numbers = value.detach().to(at::kDouble).reshape({-1});
  if (numbers.numel() == 2) return numbers;
  return at::stack({numbers[0] * static_cast<double>(samples),
                    at::scalar_tensor(static_cast<double>(samples), at::kDouble)});
}

std::vector<Metric> with_loss(const Task& task) {
  std::vector<Metric> all = task.metrics;
  const bool has = std::any_of(all.begin(), all.end(),
                               [](const Metric& metric) { return metric.name == "loss"; });
  if (!has) all.insert(all.begin(), Metric{"loss", task.model.loss});
  return all;
}

}  // namespace

Evaluator::Evaluator(const Task& task, const Mesh& mesh, parallel::ParallelModel& model,
                     const RankData& rank_data, Settings settings)
    : test_(task.test),
      metrics_(with_loss(task)),
      mesh_(mesh),
      model_(model),
      data_(rank_data),
      settings_(settings) {}

std::vector<std::string> Evaluator::metrics() const {
  std::vector<std::string> names;
  for (const Metric& metric : metrics_) names.push_back(metric.name);
  return names;
}

// float64 [metrics, 2]: sum and count of each metric over the samples of a block. Only the first
// rank that holds the outputs returns them; the others return zeros. Every replica runs every pass:
// with too few samples it repeats one, which is not counted.
at::Tensor Evaluator::measure(const data::Batch& batch, bool mine) {
  const std::int64_t rows = mine ? batch.inputs[0].size(0) : 0;
  const std::int64_t missing = std::max<std::int64_t>(0, settings_.passes - rows);
  parallel::Tensors inputs;
  for (const at::Tensor& input : batch.inputs) {
    std::vector<at::Tensor> parts(static_cast<std::size_t>(missing), input.narrow(0, 0, 1));
    parts.insert(parts.begin(), input.narrow(0, 0, rows));
    inputs.push_back(missing == 0 ? parts[0] : at::cat(parts));
  }
  parallel::Tensors outputs = model_.predict(inputs);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  if (outputs.empty() || rows == 0 || mesh_.coordinate("cp") > 0) return sums;
  const at::NoGradGuard no_grad;
  for (at::Tensor& output : outputs) {
    if (output.dim() > 0 && output.size(0) == rows + missing) output = output.narrow(0, 0, rows);
    if (output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16)
      output = output.to(at::kFloat);
  }
  parallel::Contexts contexts;
  contexts.tp = parallel::TensorParallel(mesh_["tp"], 0);
  for (std::size_t i = 0; i < metrics_.size(); ++i)
    sums[static_cast<std::int64_t>(i)] =
        sum_and_count(metrics_[i].of(outputs, batch.targets, contexts), rows, metrics_[i].name);
  return mesh_.coordinate("tp") == 0 ? sums : at::zeros_like(sums);
}

Evaluation Evaluator::evaluate() {
  Evaluation result;
  result.samples = test_.size;
  if (result.samples == 0) return result;
  const int world = data_.replicas();
  const std::int64_t block = settings_.block, blocks = (result.samples + block - 1) / block;
  data::Loader loader =
      data_.load(test_, {.batch = block, .order = data::Order::kSequential}, settings_.prefetch);
  at::Tensor all = at::zeros({blocks, static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  std::optional<data::Batch> last;  // placeholder in rounds without a block for this replica
  for (std::int64_t round = 0; round * world < blocks; ++round) {
    const std::int64_t number = round * world + data_.replica();
    if (number < blocks) last = loader.next(Deadline::in(mesh_.world().timeout()));
    if (!last) last = test_.make(data::Share{.indices = {0}, .global_size = 1});
    const at::Tensor sums = measure(*last, number < blocks);
    if (number < blocks) all[number] = sums;
  }
  mesh_.world().all_reduce(all);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  for (std::int64_t i = 0; i < blocks; ++i) sums += all[i];
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    // NaN where nothing counts: a loss of 0 would be the best one.
    const double mean = sums[at][0].item<double>() / sums[at][1].item<double>();
    if (metrics_[i].name == "loss") {
      result.loss = mean;
    } else {
      result.metrics.emplace_back(metrics_[i].name, mean);
    }
  }
  return result;
}

}  // namespace internal

double Evaluation::metric(const std::string& name) const {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [&](const auto& one) { return one.first == name; });
  return found == metrics.end() ? 0 : found->second;
}

}  // namespace weft::train
