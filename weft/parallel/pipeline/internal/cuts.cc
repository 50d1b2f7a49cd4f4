#include "weft/parallel/pipeline/internal/cuts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "weft/parallel/pipeline/internal/graph.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/plan/mesh/stages.h"

namespace weft::parallel {
namespace internal {
namespace {

constexpr int kRuns = 3;

// Leaves a block as it was before its runs, since `make` may return the same block again: its
// gradients, and its buffers such as running statistics.
class Untouched {
 public:
  explicit Untouched(const Block& block) {
    if (!block.module) return;
    parameters_ = block.module->parameters();
    for (const at::Tensor& parameter : parameters_)
      gradients_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    restore_buffers_ = preserve_buffers(block.module->buffers())();
  }
  ~Untouched() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].mutable_grad() = gradients_[i];
    if (restore_buffers_) restore_buffers_();
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  Tensors parameters_, gradients_;
  std::function<void()> restore_buffers_;
};

// Times one block at a time, so that rank 0 does not need more memory than in training. Restores
// the blocks and the random generator.
std::vector<plan::Block> time_blocks(int num_blocks, const std::function<Block(int)>& make,
                                     const Tensors& sample) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  std::vector<plan::Block> times;
  Tensors x = sample;
  for (int i = 0; i < num_blocks; ++i) {
    const Block block = make(i);
    const Untouched untouched(block);
    double best = std::numeric_limits<double>::infinity();
    Tensors y;
    for (int run = 0; run < kRuns + 1; ++run) {  // the first run warms up
      const auto begin = std::chrono::steady_clock::now();
      StageGraph graph(block.forward, x);
      y.clear();
      Tensors ones;
      for (const at::Tensor& out : graph.outputs()) {
        y.push_back(out.detach().requires_grad_(out.requires_grad()));
        ones.push_back(out.requires_grad() ? at::ones_like(out) : at::Tensor());
      }
      graph.backward(ones);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (run > 0) best = std::min(best, took.count());
    }
    std::int64_t bytes = 0;
    for (const at::Tensor& out : y) bytes += static_cast<std::int64_t>(out.nbytes());
    times.push_back({.seconds = best, .boundary_bytes = bytes});
    x = y;
  }
  generator.set_state(state);
  return times;
}

void check(const std::vector<int>& cuts, int num_blocks, int stages) {
  bool good = static_cast<int>(cuts.size()) + 1 == stages;
  for (std::size_t i = 0; i < cuts.size(); ++i)
    good = good && cuts[i] > (i == 0 ? 0 : cuts[i - 1]) && cuts[i] < num_blocks;
  WEFT_REQUIRE(good, "pipeline: " + std::to_string(stages) + " stages of " +
                         std::to_string(num_blocks) + " blocks have " + std::to_string(stages - 1) +
                         " ascending cuts from 1 to " + std::to_string(num_blocks - 1));
}

}  // namespace

std::vector<int> cuts_of(const Group& group, int num_blocks, int stages,
                         const std::function<Block(int)>& make, const PipelineOptions& options) {
  WEFT_REQUIRE(stages <= num_blocks, "pipeline: " + std::to_string(stages) + " stages of " +
                                         std::to_string(num_blocks) +
                                         " blocks; every stage needs at least one");
  if (!options.cuts.empty()) {
    check(options.cuts, num_blocks, stages);
    return options.cuts;
  }
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(stage * num_blocks / stages);
  if (group.rank() == 0 && !options.sample.empty()) {
    cuts = measured_cuts(num_blocks, stages, make, options.sample);
  }
  if (cuts.empty() || group.size() == 1) return cuts;
  at::Tensor told = at::tensor(at::ArrayRef<int>(cuts), at::kInt);
  group.broadcast(told, 0);
  const int* const first = told.const_data_ptr<int>();
  return {first, first + cuts.size()};
}

}  // namespace internal

std::vector<int> measured_cuts(int num_blocks, int stages, const std::function<Block(int)>& make,
                               const Tensors& sample) {
  return plan::cut_stages(internal::time_blocks(num_blocks, make, sample), {.stages = stages}).cuts;
}

}  // namespace weft::parallel
