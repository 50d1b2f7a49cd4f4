#include "weft/train/internal/step.h"

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

at::Tensor forward_loss(const StepParts& parts, const at::Tensor& images, const at::Tensor& targets, models::Reduction reduction) {
  at::Tensor loss;
  {
    const auto scope = parts.timer.time(Phase::kForward);
    const Autocast autocast(parts.bf16);
    loss = models::loss(parts.model.forward(images), targets, parts.loss, reduction);
  }
  count_exchange({parts.parallel, parts.timer}, Phase::kForward);
  return loss;
}

// Tensors that are combined element by element; an undefined one counts as zero.
using Tensors = std::vector<at::Tensor>;

void add_into(Tensors& sum, Tensors& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (!sum[i].defined()) {
      sum[i] = std::move(more[i]);
    } else if (more[i].defined()) {
      sum[i].add_(more[i]);
    }
  }
}

// The micro-shards of one step on this rank.
class MicroShards {
 public:
  MicroShards(const StepParts& parts, const data::Batch& batch, int shards)
      : parts_(parts), batch_(batch), shards_(shards), losses_(static_cast<std::size_t>(shards)) {
    parameters_ = parts.model.module->parameters();
    for (const auto& buffer : parts.model.module->buffers()) {
      (buffer.is_floating_point() ? buffers_ : counters_).push_back(buffer);
    }
    for (const auto& buffer : buffers_) start_.push_back(buffer.clone());
    for (const auto& counter : counters_) counters_start_.push_back(counter.clone());
  }

  void run() {
    const int world = parts_.parallel.group().size(), rank = parts_.parallel.group().rank();
    const int here = shards_ / world;
    Sums sums;
    {
      const auto no_sync = parts_.parallel.no_sync();
      sums = subtree(rank * here, (rank + 1) * here);
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = sums.gradients[i];
    if (!buffers_.empty()) average_buffers(sums.buffers);
    // Counters count steps, not micro-shards. A rank without samples has not counted; the last one always has some.
    if (batch_.share.global_size >= shards_) return;
    for (auto& counter : counters_) parts_.parallel.group().broadcast(counter, world - 1);
  }

  std::vector<double> losses() && { return std::move(losses_); }

 private:
  struct Sums {
    Tensors gradients, buffers;
  };

  Sums subtree(int begin, int end) {
    if (end - begin == 1) return leaf(begin);
    const int middle = begin + (end - begin) / 2;
    Sums sums = subtree(begin, middle), more = subtree(middle, end);
    add_into(sums.gradients, more.gradients);
    add_into(sums.buffers, more.buffers);
    return sums;
  }

  Sums leaf(int shard) {
    const auto range = data::share_of(batch_.share.global_size, shard, shards_);
    // Where this rank's samples begin in the batch: its shares are the union of its micro-shards.
    const int here = shards_ / parts_.parallel.group().size();
    const auto first = data::share_of(batch_.share.global_size, parts_.parallel.group().rank() * here, shards_).begin;
    Sums sums{Tensors(parameters_.size()), Tensors(buffers_.size())};
    if (range.size() == 0) return sums;
    restore_buffers();
    // Copies, so that every micro-shard lies at the same alignment wherever it is computed: vectorised code may sum in another order else.
    const auto images = batch_.images.narrow(0, range.begin - first, range.size()).clone();
    const auto targets = batch_.targets.narrow(0, range.begin - first, range.size()).clone();
    const auto total = forward_loss(parts_, images, targets, models::Reduction::kSum);
    losses_[static_cast<std::size_t>(shard)] = total.item<double>();
    {
      const auto scope = parts_.timer.time(Phase::kBackward);
      (total / static_cast<double>(batch_.share.global_size)).backward();
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      sums.gradients[i] = parameters_[i].grad();
      parameters_[i].mutable_grad() = at::Tensor();
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) sums.buffers[i] = buffers_[i].clone();
    return sums;
  }

  void restore_buffers() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(start_[i]);
    for (std::size_t i = 0; i < counters_.size(); ++i) counters_[i].copy_(counters_start_[i]);
  }

  // The mean over all micro-shards that had samples, summed along the rest of the tree from every rank's part.
  void average_buffers(Tensors& sums) {
    const auto& group = parts_.parallel.group();
    Tensors flat;
    for (std::size_t i = 0; i < sums.size(); ++i) flat.push_back((sums[i].defined() ? sums[i] : at::zeros_like(start_[i])).flatten());
    const auto mine = at::cat(flat);
    auto all = at::empty({group.size() * mine.numel()}, mine.options());
    group.all_gather(all, mine);
    Tensors level;
    for (int rank = 0; rank < group.size(); ++rank) level.push_back(all.narrow(0, rank * mine.numel(), mine.numel()));
    while (level.size() > 1) {
      Tensors next;
      for (std::size_t i = 0; i < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
      level = std::move(next);
    }
    const auto mean = level[0] / static_cast<double>(std::min<std::int64_t>(shards_, batch_.share.global_size));
    std::int64_t at = 0;
    for (auto& buffer : buffers_) {
      buffer.copy_(mean.narrow(0, at, buffer.numel()).view_as(buffer));
      at += buffer.numel();
    }
  }

  const StepParts& parts_;
  const data::Batch& batch_;
  const int shards_;
  std::vector<double> losses_;
  Tensors parameters_, buffers_, start_, counters_, counters_start_;
};

}  // namespace

void count_exchange(const ExchangeTimes& of, Phase from) {
  const auto spent = of.parallel.take_times();
  const auto move = [&](double seconds, Phase to) {
    const std::chrono::nanoseconds time(std::llround(seconds * 1e9));
    of.timer.add(from, -time);
    of.timer.add(to, time);
  };
  move(spent.wait, Phase::kCommunication);
  if (from == Phase::kForward) move(spent.work, Phase::kOptimizer);
}

Autocast::Autocast(bool on) : on_(on) {
  if (!on_) return;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

Autocast::~Autocast() {
  if (!on_) return;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

double plain_step(const StepParts& parts, const data::Batch& batch) {
  const auto samples = batch.images.size(0);
  parts.parallel.set_samples(static_cast<double>(samples));
  if (samples == 0) return 0;
  const auto mean = forward_loss(parts, batch.images, batch.targets, models::Reduction::kMean);
  const auto scope = parts.timer.time(Phase::kBackward);
  mean.backward();
  return mean.item<double>() * static_cast<double>(samples);
}

std::vector<double> reproducible_step(const StepParts& parts, const data::Batch& batch, int shards) {
  MicroShards step(parts, batch, shards);
  step.run();
  return std::move(step).losses();
}

}  // namespace weft::train::internal
