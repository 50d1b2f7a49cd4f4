// Muon: momentum whose matrices are made orthogonal (Jordan and others: Muon: An optimizer for
// hidden layers in neural networks, 2024, https://kellerjordan.github.io/posts/muon).
//
//   m = momentum m + (1 - momentum) g
//   u = momentum m + (1 - momentum) g            without Nesterov: u = m
//   X = u / max(||u||, 1e-7); five times: A = X X'; X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
//   w = w - lr decay w - lr sqrt(max(1, rows / columns)) X
//
// This is for tensors with two dimensions or more. A tensor with three is a stack of matrices
// (experts), one for each index of the first dimension. Tensors with two, or with more than three
// (filters), are matrices of the first dimension by all others. All other tensors, and those of
// OptimizerSpec::not_orthogonal (embeddings, the last layer), are updated by AdamW with
// lr * adam_lr, the same decay, and beta1, beta2 and eps.
//
// Cost. 30 n^2 m multiplications and additions for a matrix of n <= m rows and columns. Each tensor
// belongs to one rank, which collects its u and sends X to all: about the traffic of an all-reduce.
// The state is that of Adam, of which matrices use half.
// Limits. The reference computes X in bfloat16, weft in the type of the weights. Matrices are not
// divided over tp or ep. No L1 penalty.
#pragma once

#include "weft/optim/flat_step.h"

namespace weft::optim {

struct Muon {
  double lr = 0.02;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.0;
  double adam_lr = 0.015;  // AdamW's learning rate over lr.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-10;
  bool operator==(const Muon&) const = default;
};

// The coefficients of X, A X and A A X.
inline constexpr double kNewtonSchulz[] = {3.4445, -4.7750, 2.0315};
inline constexpr int kNewtonSchulzSteps = 5;

// The first half of a step of a matrix: updates m, state[0], and writes u. Number: float or double.
template <class Number>
void begin_step(const Muon& rule, const FlatStep<Number>& at, Number* update);
// The second half: takes elements of X times `factor` = sqrt(max(1, rows / columns)).
template <class Number>
void end_step(const Muon& rule, const FlatStep<Number>& at, const Number* orthogonal,
              double factor);

}  // namespace weft::optim
