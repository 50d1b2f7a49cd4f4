// Test helper: a trainer of one process, by torch::optim (trainers.h: of ranks).
#pragma once

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <memory>
#include <sstream>

#include "weft/engine/testing/trainer.h"

namespace weft::engine::habits {

// Optimizers of torch::optim: of all parts, or of those before Rule::split and of the others.
class ByTorch : public Trainer {
 public:
  ByTorch(int ranks, const Rule& rule) : Trainer(ranks, rule), rule_(rule) { make_optimizers(); }
  void zero_grad() override {
    for (One& one : all_) one.optimizer->zero_grad();
  }
  void step() override {
    for (std::size_t i = 0; i < all_.size(); ++i) step_of(i);
  }
  void zero_grad_of(std::size_t optimizer) override { all_.at(optimizer).optimizer->zero_grad(); }
  void step_of(std::size_t optimizer) override {
    One& one = all_.at(optimizer);
    if (rule_.clip > 0) torch::nn::utils::clip_grad_norm_(one.parameters, rule_.clip);
    one.optimizer->step();
  }
  void set_lr(double lr) override {
    for (One& one : all_) one.optimizer->param_groups()[0].options().set_lr(lr);
  }
  void save() override {
    save_weights();
    for (One& one : all_) {
      std::ostringstream state;
      torch::save(*one.optimizer, state);
      one.state = state.str();
    }
  }
  void load() override {
    if (all_[0].state.empty()) return;
    load_weights();
    for (One& one : all_) {
      std::istringstream state(one.state);
      const double lr = one.optimizer->param_groups()[0].options().get_lr();
      one.optimizer->state().clear();  // it stays where the saved one has none
      torch::load(*one.optimizer, state);
      one.optimizer->param_groups()[0].options().set_lr(lr);  // which weft's states do not have
    }
  }
  void restart() override {
    zero_grad();
    make_optimizers();
  }
  void scale_held(double factor) override {
    const at::NoGradGuard guard;
    for (at::Tensor& parameter : parameters()) parameter.mul_(factor);
  }

 private:
  struct One {
    std::vector<at::Tensor> parameters;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::string state;
  };
  // Saved states stay.
  void make_optimizers() {
    all_.resize(rule_.split > 0 ? 2 : 1);
    for (One& one : all_) one.parameters.clear();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      One& one = part < rule_.split ? all_.front() : all_.back();
      for (at::Tensor& parameter : parts[part]->parameters()) one.parameters.push_back(parameter);
    }
    for (One& one : all_) {
      if (rule_.adam)
        one.optimizer =
            std::make_unique<torch::optim::AdamW>(one.parameters, torch::optim::AdamWOptions(0.01));
      else
        one.optimizer = std::make_unique<torch::optim::SGD>(
            one.parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    }
  }

  const Rule rule_;
  std::vector<One> all_;
};

class Alone final : public ByTorch {
 public:
  Alone(int ranks, const Rule& rule) : ByTorch(ranks, rule), chain_(parts) {}
  at::Tensor loss(const Pass& pass) override {
    at::Tensor sum = at::zeros({}, type);
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

}  // namespace weft::engine::habits
