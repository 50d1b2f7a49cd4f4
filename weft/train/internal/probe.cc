#include "weft/train/internal/probe.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "weft/base/deadline.h"
#include "weft/comm/allocator.h"
#include "weft/observe/memory.h"
#include "weft/observe/position/position.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/measured.h"

namespace weft::train::internal {
namespace {

using observe::Phase;
using std::chrono::steady_clock;

// What this rank has measured, in the order in which ranks exchange it.
enum Value {
  kProbedSeconds,
  kProbedData,
  kProbedCompute,
  kProbedCommunication,
  kProbedUpdate,
  kProbedBusy,
  kProbedMemory,
  kProbedTraffic,
  kValues
};

class Prober {
 public:
  Prober(const Task& task, const Options& options, const Group& world)
      : world_(world),
        mesh_(world, options.mesh.axes()),
        learner_(task, options, mesh_, nullptr, nullptr) {}

  void step() {
    if (in_epoch_ == learner_.batches().per_epoch) {
      learner_.end_epoch();
      in_epoch_ = 0;
    }
    timer_.reset();
    const comm::Traffic before = world_.traffic();
    const std::int64_t waited = observe::waited_ns();
    const auto start = steady_clock::now();
    in_epoch_ += learner_.step(++number_, 0, timer_).passes;
    const double seconds = seconds_since(start);
    const comm::Traffic after = world_.traffic();
    const auto phase = [&](Phase one) { return timer_.ms(one) / 1e3; };
    const double idle = 1e-9 * static_cast<double>(observe::waited_ns() - waited);
    const double sent = static_cast<double>(after.sent_bytes - before.sent_bytes) +
                        static_cast<double>(after.shared_bytes - before.shared_bytes);
    const std::array<double, kValues> now = {seconds,
                                             phase(Phase::kData),
                                             phase(Phase::kForward) + phase(Phase::kBackward),
                                             phase(Phase::kCommunication),
                                             phase(Phase::kOptimizer),
                                             std::max(0.0, seconds - idle),
                                             0,
                                             sent};
    for (std::size_t i = 0; i < now.size(); ++i) values_[i].push_back(now[i]);
  }

  void forget() {
    for (auto& one : values_) one.clear();
  }
  void rebalance() { learner_.rebalance(); }
  double last() const { return values_[kProbedSeconds].back(); }

  ProbedStep result() const {
    std::vector<double> mine;
    for (const auto& values : values_) mine.push_back(median(values));
    mine[kProbedMemory] = static_cast<double>(observe::peak_memory_share());
    ProbedStep result;
    const double ranks = world_.size();
    for (const auto& one : gather_numbers(world_, mine)) {
      result.seconds += one[kProbedSeconds] / ranks;
      result.data += one[kProbedData] / ranks;
      result.compute += one[kProbedCompute] / ranks;
      result.update += one[kProbedUpdate] / ranks;
      result.memory += one[kProbedMemory] / ranks;
      result.traffic += one[kProbedTraffic] / ranks;
      result.busy.push_back(one[kProbedBusy]);
    }
    result.communication = least_communication();
    return result;
  }

 private:
  // Ranks that are late in turn make the others wait, which is not the cost of communication.
  double least_communication() const {
    std::vector<double> least = values_[kProbedCommunication];
    for (const auto& one : gather_numbers(world_, least))
      for (std::size_t step = 0; step < least.size(); ++step)
        least[step] = std::min(least[step], one[step]);
    return median(least);
  }

  const Group world_;
  const Mesh mesh_;
  Learner learner_;
  observe::StepTimer timer_;
  std::int64_t number_ = 0, in_epoch_ = 0;
  std::array<std::vector<double>, kValues> values_;
};

template <class Fn>
void each_value(const parallel::BlockSpec& spec, const Fn& fn) {
  const parallel::Block block = spec.make({});
  for (const at::Tensor& one : block.module->parameters()) fn(one);
  for (const at::Tensor& one : block.module->buffers()) fn(one);
}

}  // namespace

double ProbedStep::rest() const {
  return std::max(0.0, seconds - data - compute - communication - update);
}

void release_memory(const Group& world) {
  world.barrier();  // what another rank has used is freed when it is here
  comm::release_memory();
  world.barrier();
}

ProbedStep probe(const Task& task, const Options& options, const Group& world,
                 const ProbeOptions& how) {
  release_memory(world);
  observe::forget_peak_memory();
  Prober prober(task, options, world);
  double last = 0;  // rank 0's
  for (int step = 0; step < how.warm && last < how.long_step; ++step) {
    prober.step();
    prober.rebalance();
    at::Tensor seconds = at::tensor({prober.last()}, at::kDouble);
    world.broadcast(seconds);
    last = std::max(1e-6, seconds.item<double>());
  }
  const int least = last < how.long_step ? how.least : std::min(how.least, 2);
  const int steps = static_cast<int>(std::clamp(how.seconds / last, 1.0 * least, 1.0 * how.most));
  prober.forget();
  for (int step = 0; step < steps; ++step) prober.step();
  return prober.result();
}

KeptValues::KeptValues(const parallel::BlockModel& model) : model_(model) {
  const at::NoGradGuard no_grad;
  for (const parallel::BlockSpec& spec : model.blocks) {
    auto& kept = values_.emplace_back();
    each_value(spec, [&](const at::Tensor& one) { kept.push_back(one.detach().clone()); });
  }
}

void KeptValues::restore() const {
  const at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < values_.size(); ++b) {
    std::size_t next = 0;
    each_value(model_.blocks[b], [&](const at::Tensor& one) {
      one.detach().copy_(values_[b][next++]);
      if (one.requires_grad()) one.mutable_grad() = at::Tensor();
    });
  }
}

}  // namespace weft::train::internal
