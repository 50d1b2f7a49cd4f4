// LARS and LAMB: update rules for large batches, which scale the update of each tensor by the
// tensor's norm.
//
//   LARS (You, Gitman, Ginsburg: Large batch training of convolutional networks, 2017,
//   arXiv:1708.03888, algorithm 1)
//     r = trust ||w|| / (||g|| + decay ||w||)
//     m = momentum m + r (g + decay w)
//     w = w - lr m              with Nesterov: w = w - lr (r (g + decay w) + momentum m)
//   The paper multiplies lr into m; here it multiplies m, as in torch's SGD. The two differ only
//   while lr changes. Tensors with one dimension or none have r = 1 and no decay.
//
//   LAMB (You and others: Large batch optimization for deep learning, 2020, arXiv:1904.00962,
//   algorithm 2)
//     m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
//     u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w
//     w = w - lr ||w|| / ||u|| u
//
// r and ||w|| / ||u|| are 1 where a norm is zero.
//
// Cost. LARS makes one more pass over gradients and weights than SGD, and LAMB one more over
// weights and state than Adam. The norms need 16 bytes of all-reduce for each tensor and step. No
// weight is updated before all gradients are known, so updates do not overlap backward.
// Limits. No L1 penalty.
#pragma once

#include <cstddef>

#include "weft/optim/flat_step.h"
#include "weft/optim/tensor_sums.h"

namespace weft::optim {

struct Lars {
  double lr = 0.1;
  double momentum = 0.9;
  double trust = 1e-3;
  bool nesterov = false;
  double weight_decay = 0.0;
  bool operator==(const Lars&) const = default;
};

struct Lamb {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.0;
  bool operator==(const Lamb&) const = default;
};

// Norms of a whole tensor.
struct TensorNorms {
  double weight = 0;
  double update = 0;       // LARS: of the gradient. LAMB: of u.
  bool is_vector = false;  // the tensor has one dimension or none
};

// The first half of a step: adds squares to the sums `sum` (weights) and `sum` + 1 (update). LAMB
// updates m and v. Number: float or double.
template <class Number>
void begin_step(const Lars& rule, const FlatStep<Number>& at, TensorSums& sums, std::size_t sum);
template <class Number>
void begin_step(const Lamb& rule, const FlatStep<Number>& at, TensorSums& sums, std::size_t sum);

// The second half, with the norms over all elements: updates the weights, and m of LARS.
template <class Number>
void end_step(const Lars& rule, const FlatStep<Number>& at, const TensorNorms& norms);
template <class Number>
void end_step(const Lamb& rule, const FlatStep<Number>& at, const TensorNorms& norms);

}  // namespace weft::optim
