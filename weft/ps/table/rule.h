// Update rules of the rows of an embedding table. A server applies one rule to each pushed row.
//
// w is the row's weight, g the pushed gradient, t the number of pushes of this row with this one
// (from 1). All operations are element by element, in float32, with scalars computed in float64.
//
//   rule      equation                                        state         source
//   Add       w += g                                          none          deltas of a worker
//   Sgd       m = momentum m + (1 - dampening) g; w -= lr m   m, if         torch::optim::SGD
//                                                             momentum > 0
//   Adagrad   s += g²;  w -= lr g / (sqrt(s) + eps)           s             Duchi, Hazan, Singer,
//                                                                           JMLR 12 (2011)
//   Adam      m = β1 m + (1 - β1) g;                          m, v          Kingma, Ba, ICLR 2015
//             v = β2 v + (1 - β2) g²;
//             w -= lr m / (1 - β1^t) / (sqrt(v / (1 - β2^t)) + eps)
//   Ftrl      σ = (sqrt(n + g²) - sqrt(n)) / α;               z, n          McMahan et al., KDD
//             z += g - σ w;  n += g²;                                       2013, algorithm 1
//             w = 0 if |z| <= l1, else
//             w = -(z - sign(z) l1) / ((β + sqrt(n)) / α + l2)
//
// Rows are updated lazily: a row that no push names does not change, and t counts only the row's
// own pushes. So Adam's averages do not decay, and regularizers do not act, while a row is not
// pushed. torch's SparseAdam is lazy in the same way, but its t counts all steps.
//
// Pure functions over disjoint memory: any thread may call them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "weft/kernels/update.h"

namespace weft::ps {

// Adds the pushed values: deltas instead of gradients.
struct Add {};

struct Adagrad {
  kernels::Adagrad rule;
  double initial_accumulator = 0;  // First value of s, at least 0.
};

// Follow the regularized leader, proximal. The weights of l1 > 0 are sparse.
//
// A new row may have weights other than 0 (TableOptions::initial_range). Its z is then the one that
// the equation maps to these weights. beta or l2 must be above 0.
struct Ftrl {
  double alpha = 0.1;  // Learning rate, above 0.
  double beta = 1;     // At least 0.
  double l1 = 0, l2 = 0;
};

using RowRule = std::variant<Add, kernels::Sgd, Adagrad, kernels::Adam, Ftrl>;

// "add", "sgd", "adagrad", "adam" or "ftrl".
std::string rule_name(const RowRule& rule);

// Number of float32 arrays of state, each as long as the row: 0 to 3.
int state_arrays(const RowRule& rule);

// Throws Error(kInvalidArgument) if a number of the rule is out of range.
void check(const RowRule& rule);

// Sets the learning rate. Throws Error(kInvalidArgument) for add, which has none, and for ftrl,
// whose state depends on it.
void set_lr(RowRule& rule, double lr);

// A row: `count` weights, then the arrays of state, one after the other.
struct RowValues {
  float* weights = nullptr;
  float* state = nullptr;
  std::int64_t count = 0;
};

// Writes the first state of a row that has its first weights.
void init_state(const RowRule& rule, const RowValues& row);

// Updates the row by `count` gradients. step is t, from 1.
void update_row(const RowRule& rule, const RowValues& row, const float* gradient,
                std::int64_t step);

}  // namespace weft::ps
