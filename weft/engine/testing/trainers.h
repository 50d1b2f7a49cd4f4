// Test helpers: trainers of ranks, in any way that weft offers.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>

#include "weft/engine/testing/one_process.h"

namespace weft::engine::habits {

inline OptimizerSpec spec_of(const Rule& rule) {
  return rule.adam ? optimizer_spec(torch::optim::AdamWOptions(0.01), {.max_grad_norm = rule.clip})
                   : optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9),
                                    {.max_grad_norm = rule.clip});
}

// data_parallel() of all parts, or of those before `split` and of the others.
class Chains {
 public:
  Chains(const Parts& parts, std::size_t split, const Group& group,
         const DataParallelOptions& options)
      : split_(split) {
    const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(split);
    const auto add = [&](Parts some) {
      all.push_back(data_parallel(Chain(std::move(some)), group, options));
    };
    if (split > 0) add({parts.begin(), middle});
    add({middle, parts.end()});
  }
  at::Tensor forward(at::Tensor x, const Path& path) {
    Path front, back;
    for (const std::size_t part : path)
      part < split_ ? front.push_back(part) : back.push_back(part - split_);
    if (!front.empty()) x = all.front().forward(x, front);
    return back.empty() ? x : all.back().forward(x, back);
  }
  std::shared_ptr<void> no_sync() {
    const auto guards = std::make_shared<std::vector<std::shared_ptr<void>>>();
    for (auto& one : all) guards->push_back(pause(one));
    return guards;
  }
  void bind(const Group& group) {
    for (auto& one : all) one.bind(group);
  }

  std::vector<DataParallel<ChainImpl>> all;

 private:
  const std::size_t split_;
};

class TorchRank final : public ByTorch {
 public:
  TorchRank(const Group& group, const Rule& rule)
      : ByTorch(group.size(), rule),
        group_(group),
        rank_(group.rank()),
        models_(parts, rule.split, group, {}) {}
  at::Tensor loss(const Pass& pass) override {
    return next_loss(pass, rank_, [&](const at::Tensor& x, const Path& path) {
      return models_.forward(x, path);
    });
  }
  // A pass over any row, so that this rank takes part in the averages.
  void skip_batch() override {
    const at::Tensor y = models_.forward(rows_of({}, 0), Pass{}.path(0, parts.size()));
    for (auto& model : models_.all) model.set_samples(0);
    (y * 0).sum().backward();
  }
  std::shared_ptr<void> no_sync() override { return models_.no_sync(); }
  void restart() override {
    models_.bind(group_);
    ByTorch::restart();
  }

 private:
  const Group group_;
  const int rank_;
  Chains models_;
};

class ModuleRank final : public Trainer {
 public:
  ModuleRank(const Group& group, const Way& way, const Rule& rule)
      : Trainer(group.size(), rule),
        group_(group),
        rank_(group.rank()),
        models_(parts, rule.split, group,
                {.weights = way.weights,
                 .codec = way.codec,
                 .update_in_backward = way.update_in_backward,
                 .overlap_forward = way.overlap_forward}) {
    for (auto& model : models_.all) optimizers_.push_back(model.optimizer(spec_of(rule)));
    states_.resize(optimizers_.size());
  }
  at::Tensor loss(const Pass& pass) override {
    return next_loss(pass, rank_, [&](const at::Tensor& x, const Path& path) {
      return models_.forward(x, path);
    });
  }
  void zero_grad() override {
    for (Optimizer& optimizer : optimizers_) optimizer.zero_grad();
  }
  void step() override {
    for (Optimizer& optimizer : optimizers_) optimizer.step();
  }
  void zero_grad_of(std::size_t optimizer) override { optimizers_.at(optimizer).zero_grad(); }
  void step_of(std::size_t optimizer) override { optimizers_.at(optimizer).step(); }
  void set_lr(double lr) override {
    for (Optimizer& optimizer : optimizers_) optimizer.set_lr(lr);
  }
  std::shared_ptr<void> no_sync() override { return models_.no_sync(); }
  void save() override {
    save_weights();
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = optimizers_[i].state();
  }
  void load() override {
    if (states_[0].empty()) return;
    load_weights();
    for (std::size_t i = 0; i < states_.size(); ++i) optimizers_[i].load_state(states_[i]);
  }
  void restart() override { models_.bind(group_); }

 private:
  const Group group_;
  const int rank_;
  Chains models_;
  std::vector<Optimizer> optimizers_;
  std::vector<Sharded::NamedTensors> states_;
};

class ShardedRank final : public Trainer {
 public:
  ShardedRank(const Group& group, const Way& way, const Rule& rule)
      : Trainer(group.size(), rule),
        rank_(group.rank()),
        model_(small_model::blocks_of(parts), group, spec_of(rule),
               small_model::options_of(way.stage, way.weights)) {
    if (way.keeps_held) held_ = model_.held();
  }
  at::Tensor loss(const Pass& pass) override {
    return next_loss(pass, rank_, [&](const at::Tensor& x, const Path& path) {
      Tensors all{x};
      for (const std::size_t part : path) all = model_.run(part, all);
      return all[0];
    });
  }
  void zero_grad() override { model_.zero_grad(); }
  void step() override { model_.step(); }
  void set_lr(double lr) override { model_.set_lr(lr); }
  std::shared_ptr<void> no_sync() override { return pause(model_); }
  void skip_batch() override { model_.skip_batch(); }
  void save() override {
    state_.clear();
    for (const auto& [name, tensor] : model_.state()) state_.emplace_back(name, tensor.clone());
    has_state_ = true;
  }
  void load() override {
    if (has_state_) model_.load_state(state_);
  }
  // Each value once, by the rank that has it in its slices alone.
  void scale_held(double factor) override {
    const at::NoGradGuard guard;
    model_.take_changes();  // what the program has loaded is in other memory than these slices
    checkpoint::Slices now;
    if (held_.empty()) now = model_.held();
    for (const checkpoint::Slice& slice : held_.empty() ? now : held_) {
      if (is_weight(slice.name)) slice.tensor.mul_(factor);
    }
    model_.take_changes();
  }
  Named weights() override {
    const auto state = model_.state();
    Named all;
    for (const auto& [name, tensor] : state) {
      if (is_weight(name)) all[name] = tensor.clone();
    }
    return all;
  }

 private:
  static bool is_weight(const std::string& name) {
    return name.ends_with(".weight") || name.ends_with(".bias");
  }

  const int rank_;
  Sharded model_;
  checkpoint::Slices held_;      // that the program keeps
  Sharded::NamedTensors state_;  // of rank 0
  bool has_state_ = false;
};

inline std::unique_ptr<Trainer> trainer_of(const Group& group, const Way& way, const Rule& rule) {
  if (way.torch_optimizer) return std::make_unique<TorchRank>(group, rule);
  if (way.module) return std::make_unique<ModuleRank>(group, way, rule);
  return std::make_unique<ShardedRank>(group, way, rule);
}

}  // namespace weft::engine::habits
