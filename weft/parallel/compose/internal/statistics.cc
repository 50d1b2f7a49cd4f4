#include "weft/parallel/compose/internal/statistics.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "weft/checkpoint/slice.h"

namespace weft::parallel::internal {
namespace {

// Autograd has saved the buffer but does not read it in training mode, so this write must not count
// as a change.
void assign(const at::Tensor& buffer, const at::Tensor& value) {
  buffer.variable_data().copy_(value);
}

void add_into(std::vector<at::Tensor>& sum, const std::vector<at::Tensor>& more) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = sum[i].defined() && more[i].defined() ? sum[i] + more[i]
             : sum[i].defined()                    ? sum[i]
                                                   : more[i];
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

Statistics::Statistics(std::vector<Named> buffers) : buffers_(std::move(buffers)) {
  for (const Named& buffer : buffers_)
    (buffer.tensor.is_floating_point() ? floating_ : counters_).push_back(buffer.tensor);
}

void Statistics::take_first(const Group& group) {
  if (buffers_.empty() || group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const Named& buffer : buffers_) {
    const at::Tensor plain = checkpoint::plain_view(buffer.name, buffer.tensor);
    by_type[plain.scalar_type()].push_back(plain);
  }
  for (const auto& [type, tensors] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    at::Tensor all = at::cat(flat);
    group.broadcast(all, 0);
    std::int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      if (group.rank() > 0) assign(tensor, all.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
}

void Statistics::begin_step() {
  step_start_.clear();
  for (const Named& buffer : buffers_) step_start_.push_back(buffer.tensor.clone());
}

void Statistics::undo_step() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < step_start_.size(); ++i) assign(buffers_[i].tensor, step_start_[i]);
}

void Statistics::begin(int leaves) {
  leaves_ = leaves;
  start_ = copies_of(floating_);
  counters_start_ = copies_of(counters_);
  counters_end_ = counters_start_;
  waiting_.clear();
  sum_.assign(floating_.size(), at::Tensor());
}

void Statistics::restore() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < floating_.size(); ++i) assign(floating_[i], start_[i]);
  for (std::size_t i = 0; i < counters_.size(); ++i) assign(counters_[i], counters_start_[i]);
}

void Statistics::take(int leaf, bool has_samples) {
  const at::NoGradGuard no_grad;
  Tensors sum(floating_.size());
  if (has_samples) {
    sum = copies_of(floating_);
    counters_end_ = copies_of(counters_);
  }
  int size = 1, number = leaf;
  for (auto other = waiting_.find({size, number ^ 1}); other != waiting_.end();
       other = waiting_.find({size, number ^ 1})) {
    add_into(sum, other->second);
    waiting_.erase(other);
    size *= 2;
    number /= 2;
  }
  if (size == leaves_) {
    sum_ = std::move(sum);
  } else {
    waiting_.emplace(std::make_pair(size, number), std::move(sum));
  }
}

void Statistics::finish(const Group& replicas, double counted) {
  if (buffers_.empty()) return;
  const at::NoGradGuard no_grad;
  // Counters count steps, not micro-shards. If some micro-shards are empty, the last replica has
  // one that is not.
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    assign(counters_[i], counters_end_[i]);
    at::Tensor last = counters_[i].clone();
    replicas.broadcast(last, replicas.size() - 1);
    assign(counters_[i], last);
  }
  if (floating_.empty()) return;
  std::vector<at::Tensor> flat;
  for (std::size_t i = 0; i < floating_.size(); ++i) {
    flat.push_back((sum_[i].defined() ? sum_[i] : at::zeros_like(start_[i])).reshape({-1}));
  }
  const at::Tensor mine = at::cat(flat);
  at::Tensor all = at::empty({replicas.size() * mine.numel()}, mine.options());
  replicas.all_gather(all, mine);
  std::vector<at::Tensor> level;
  for (int rank = 0; rank < replicas.size(); ++rank)
    level.push_back(all.narrow(0, rank * mine.numel(), mine.numel()));
  for (; level.size() > 1; level.resize(level.size() / 2)) {
    for (std::size_t i = 0; i < level.size() / 2; ++i) level[i] = level[2 * i] + level[2 * i + 1];
  }
  const at::Tensor mean = level[0] / counted;
  std::int64_t at = 0;
  for (const at::Tensor& buffer : floating_) {
    assign(buffer, mean.narrow(0, at, buffer.numel()).view(buffer.sizes()));
    at += buffer.numel();
  }
}

PreserveState preserve_modes(const engine::Block& block) {
  return [modules = block.module->modules()]() -> std::function<void()> {
    std::vector<bool> modes;
    for (const auto& module : modules) modes.push_back(module->is_training());
    return [modules, modes] {
      for (std::size_t i = 0; i < modules.size(); ++i) modules[i]->train(modes[i]);
    };
  };
}

}  // namespace weft::parallel::internal
