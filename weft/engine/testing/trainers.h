// Test helpers: trainers of one process and of ranks, in any way that weft offers.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <sstream>

#include "weft/engine/testing/trainer.h"

namespace weft::parallel::habits {

// An optimizer of torch::optim.
class ByTorch : public Trainer {
 public:
  ByTorch(int ranks, const Rule& rule) : Trainer(ranks, rule.width), rule_(rule) {
    make_optimizer();
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  void step() override {
    if (rule_.clip > 0) torch::nn::utils::clip_grad_norm_(parameters(), rule_.clip);
    optimizer_->step();
  }
  void set_lr(double lr) override { optimizer_->param_groups()[0].options().set_lr(lr); }
  void save() override {
    save_weights();
    state_.str("");
    torch::save(*optimizer_, state_);
  }
  void load() override {
    if (state_.str().empty()) return;
    load_weights();
    std::istringstream state(state_.str());
    const double lr = optimizer_->param_groups()[0].options().get_lr();
    optimizer_->state().clear();  // it stays where the saved one has none
    torch::load(*optimizer_, state);
    set_lr(lr);  // which weft's states do not have
  }
  void restart() override {
    zero_grad();
    make_optimizer();
  }

 private:
  void make_optimizer() {
    if (rule_.adam)
      optimizer_ =
          std::make_unique<torch::optim::AdamW>(parameters(), torch::optim::AdamWOptions(0.01));
    else
      optimizer_ = std::make_unique<torch::optim::SGD>(parameters(),
                                                       torch::optim::SGDOptions(0.1).momentum(0.9));
  }

  const Rule rule_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::ostringstream state_;
};

class Alone final : public ByTorch {
 public:
  Alone(int ranks, const Rule& rule) : ByTorch(ranks, rule), chain_(parts) {}
  at::Tensor loss(const Pass& pass) override {
    at::Tensor sum = at::zeros({}, at::kDouble);
    const auto forward = [&](const at::Tensor& x, const Path& path) {
      return chain_->forward(x, path);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor loss = loss_of_share(pass, rank, forward);
      const auto rows = pass.begin(rank + 1, ranks) - pass.begin(rank, ranks);
      if (loss.defined())
        sum = sum + loss * (static_cast<double>(rows) / static_cast<double>(pass.rows));
    }
    ++batches;
    return sum;
  }

 private:
  Chain chain_;
};

inline OptimizerSpec spec_of(const Rule& rule) {
  return rule.adam ? optimizer_spec(torch::optim::AdamWOptions(0.01), {.max_grad_norm = rule.clip})
                   : optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9),
                                    {.max_grad_norm = rule.clip});
}

class TorchRank final : public ByTorch {
 public:
  TorchRank(const Group& group, const Rule& rule)
      : ByTorch(group.size(), rule),
        group_(group),
        rank_(group.rank()),
        model_(data_parallel(Chain(parts), group)) {}
  at::Tensor loss(const Pass& pass) override {
    return next_loss(pass, rank_, [&](const at::Tensor& x, const Path& path) {
      return model_.forward(x, path);
    });
  }
  // A pass over any row, so that this rank takes part in the averages.
  void skip_batch() override {
    const at::Tensor y = model_.forward(rows_of({}, 0), Pass{}.path(0, parts.size()));
    model_.set_samples(0);
    (y * 0).sum().backward();
  }
  std::shared_ptr<void> no_sync() override { return pause(model_); }
  void restart() override {
    model_.bind(group_);
    ByTorch::restart();
  }

 private:
  const Group group_;
  const int rank_;
  DataParallel<ChainImpl> model_;
};

class ModuleRank final : public Trainer {
 public:
  ModuleRank(const Group& group, const Way& way, const Rule& rule)
      : Trainer(group.size(), rule.width),
        group_(group),
        rank_(group.rank()),
        model_(data_parallel(Chain(parts), group,
                             {.weights = way.weights,
                              .codec = way.codec,
                              .update_in_backward = way.update_in_backward,
                              .overlap_forward = way.overlap_forward})),
        optimizer_(model_.optimizer(spec_of(rule))) {}
  at::Tensor loss(const Pass& pass) override {
    return next_loss(pass, rank_, [&](const at::Tensor& x, const Path& path) {
      return model_.forward(x, path);
    });
  }
  void zero_grad() override { optimizer_.zero_grad(); }
  void step() override { optimizer_.step(); }
  void set_lr(double lr) override { optimizer_.set_lr(lr); }
  std::shared_ptr<void> no_sync() override { return pause(model_); }
  void save() override {
    save_weights();
    state_ = optimizer_.state();
  }
  void load() override {
    if (state_.empty()) return;
    load_weights();
    optimizer_.load_state(state_);
  }
  void restart() override { model_.bind(group_); }

 private:
  const Group group_;
  const int rank_;
  DataParallel<ChainImpl> model_;
  Optimizer optimizer_;
  Sharded::NamedTensors state_;
};

class ShardedRank final : public Trainer {
 public:
  ShardedRank(const Group& group, const Way& way, const Rule& rule)
      : Trainer(group.size(), rule.width),
        rank_(group.rank()),
        model_(small_model::blocks_of(parts), group, spec_of(rule),
               small_model::options_of(way.stage, way.weights)) {}
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
  Named weights() override {
    const auto state = model_.state();
    Named all;
    for (const auto& [name, tensor] : state) {
      if (name.ends_with(".weight") || name.ends_with(".bias")) all[name] = tensor.clone();
    }
    return all;
  }

 private:
  const int rank_;
  Sharded model_;
  Sharded::NamedTensors state_;  // of rank 0
  bool has_state_ = false;
};

inline std::unique_ptr<Trainer> trainer_of(const Group& group, const Way& way, const Rule& rule) {
  if (way.torch_optimizer) return std::make_unique<TorchRank>(group, rule);
  if (way.module) return std::make_unique<ModuleRank>(group, way, rule);
  return std::make_unique<ShardedRank>(group, way, rule);
}

}  // namespace weft::parallel::habits
