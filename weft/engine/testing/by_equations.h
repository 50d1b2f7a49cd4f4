// Test helper: LARS, LAMB, Adafactor and Muon by the equations of their papers, on whole tensors in
// one process, with the interface of torch's optimizers.
#pragma once

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/optim/update_rule.h"

namespace weft::engine::internal {

class ByEquations {
 public:
  ByEquations(std::vector<at::Tensor> params, const optim::UpdateRule& rule)
      : params_(std::move(params)), rule_(rule), plain_(params_.size(), false), step_(0) {
    for (const at::Tensor& param : params_) {
      for (auto* state : {&first_, &second_}) state->push_back(torch::zeros_like(param).detach());
      rows_.emplace_back();
      columns_.emplace_back();
    }
  }
  // Muon: updates this tensor by AdamW.
  void leave_to_adam(const at::Tensor& param) {
    for (std::size_t i = 0; i < params_.size(); ++i)
      plain_[i] = plain_[i] || param.is_same(params_[i]);
  }
  void zero_grad() {
    for (at::Tensor& param : params_) param.mutable_grad().reset();
  }
  void step() {
    const torch::NoGradGuard guard;
    ++step_;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (!params_[i].grad().defined()) continue;
      if (const auto* lars = std::get_if<optim::Lars>(&rule_)) by_lars(*lars, i);
      if (const auto* lamb = std::get_if<optim::Lamb>(&rule_)) by_lamb(*lamb, i);
      if (const auto* adafactor = std::get_if<optim::Adafactor>(&rule_))
        by_adafactor(*adafactor, i);
      if (const auto* muon = std::get_if<optim::Muon>(&rule_)) by_muon(*muon, i);
    }
  }

 private:
  static double norm(const at::Tensor& x) { return x.norm().item<double>(); }
  static double root_mean(const at::Tensor& x) {
    return norm(x) / std::sqrt(static_cast<double>(x.numel()));
  }

  void by_lars(const optim::Lars& o, std::size_t i) {
    at::Tensor w = params_[i], g = w.grad().clone();
    if (w.dim() > 1) {
      const double ratio = o.trust * norm(w) / (norm(g) + o.weight_decay * norm(w));
      g = ratio * (g + o.weight_decay * w);
    }
    first_[i] = o.momentum * first_[i] + g;
    w.sub_(o.lr * (o.nesterov ? g + o.momentum * first_[i] : first_[i]));
  }

  // Adam's m / (sqrt(v) + eps), both corrected for their start.
  at::Tensor adam(double beta1, double beta2, double eps, std::size_t i) {
    const at::Tensor g = params_[i].grad();
    first_[i] = beta1 * first_[i] + (1 - beta1) * g;
    second_[i] = beta2 * second_[i] + (1 - beta2) * g * g;
    return first_[i] / (1 - std::pow(beta1, step_)) /
           ((second_[i] / (1 - std::pow(beta2, step_))).sqrt() + eps);
  }

  void by_lamb(const optim::Lamb& o, std::size_t i) {
    at::Tensor w = params_[i];
    const at::Tensor u = adam(o.beta1, o.beta2, o.eps, i) + o.weight_decay * w;
    const double ratio = norm(w) > 0 && norm(u) > 0 ? norm(w) / norm(u) : 1;
    w.sub_(o.lr * ratio * u);
  }

  void by_adafactor(const optim::Adafactor& o, std::size_t i) {
    at::Tensor w = params_[i];
    const at::Tensor g = w.grad(), squares = g * g + o.eps1;
    const double keep = 1 - std::pow(step_, o.decay_power);
    const auto average = [&](at::Tensor& of, const at::Tensor& now) {
      of = of.defined() ? keep * of + (1 - keep) * now : (1 - keep) * now;
    };
    at::Tensor estimate;
    if (w.dim() >= 2) {
      average(rows_[i], squares.mean(-1, true));
      average(columns_[i], squares.mean(-2, true));
      estimate = rows_[i] * columns_[i] / rows_[i].mean(-2, true);
    } else {
      average(rows_[i], squares);
      estimate = rows_[i];
    }
    const at::Tensor u = g / estimate.sqrt();
    const double rate = o.lr * std::max(o.eps2, root_mean(w));
    const at::Tensor change = rate * u / std::max(1.0, root_mean(u) / o.clip);
    first_[i] = o.beta1 * first_[i] + (1 - o.beta1) * change;
    w.mul_(1 - rate * o.weight_decay).sub_(first_[i]);
  }

  // The iteration of the reference, in the order of its blog post, for each slice of three
  // dimensions.
  static at::Tensor orthogonal(const at::Tensor& u) {
    if (u.dim() == 3) {
      std::vector<at::Tensor> slices = u.unbind();
      for (at::Tensor& slice : slices) slice = orthogonal(slice);
      return torch::stack(slices);
    }
    at::Tensor x = u.flatten(1) / std::max(norm(u), 1e-7);
    const bool tall = x.size(0) > x.size(1);
    if (tall) x = x.t();
    for (int step = 0; step < 5; ++step) {
      const at::Tensor a = torch::matmul(x, x.t());
      const at::Tensor b = -4.7750 * a + 2.0315 * torch::matmul(a, a);
      x = 3.4445 * x + torch::matmul(b, x);
    }
    return (tall ? x.t() : x).reshape(u.sizes());
  }

  void by_muon(const optim::Muon& o, std::size_t i) {
    at::Tensor w = params_[i];
    const at::Tensor g = w.grad();
    w.mul_(1 - o.lr * o.weight_decay * (w.dim() < 2 || plain_[i] ? o.adam_lr : 1));
    if (w.dim() < 2 || plain_[i]) {
      w.sub_(o.lr * o.adam_lr * adam(o.beta1, o.beta2, o.eps, i));
      return;
    }
    first_[i] = o.momentum * first_[i] + (1 - o.momentum) * g;
    const at::Tensor u = o.nesterov ? o.momentum * first_[i] + (1 - o.momentum) * g : first_[i];
    const at::Tensor matrix = w.dim() == 3 ? w[0] : w.flatten(1);
    const double tall = static_cast<double>(matrix.size(0)) / static_cast<double>(matrix.size(1));
    w.sub_(o.lr * std::sqrt(std::max(1.0, tall)) * orthogonal(u));
  }

  std::vector<at::Tensor> params_;
  const optim::UpdateRule rule_;
  std::vector<bool> plain_;
  int step_;
  std::vector<at::Tensor> first_, second_, rows_, columns_;  // by parameter
};

}  // namespace weft::engine::internal
