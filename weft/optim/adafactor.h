// Adafactor: an update rule whose second moments take little memory (Shazeer, Stern: Adafactor:
// Adaptive learning rates with sublinear memory cost, 2018, arXiv:1804.04235, algorithms 4 and 5).
//
// A tensor with two dimensions or more is a matrix over its last two, n x m, once for each index of
// the others:
//   b = 1 - t^decay_power
//   R_i = b R_i + (1 - b) (mean over j of g_ij^2 + eps1)
//   C_j = b C_j + (1 - b) (mean over i of g_ij^2 + eps1)
//   u_ij = g_ij / sqrt(R_i C_j / mean(R))
// Other tensors keep V = b V + (1 - b) (g^2 + eps1), and u = g / sqrt(V). Then, over the whole
// tensor:
//   a = lr max(eps2, RMS(w))
//   w = w - a decay w - a u / max(1, RMS(u) / clip)
// With beta1, an average of the change of w replaces it: m = beta1 m + (1 - beta1) change.
//
// Cost. State of n + m numbers instead of n m, kept whole on each rank. Three passes over the
// gradients. For each tensor and step, 8 (n + m) + 16 bytes are all-reduced. No weight is updated
// before all gradients are known.
// Limits. lr is the paper's relative step size; its schedule min(0.01, 1 / sqrt(t)) is not
// built in. No L1 penalty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/optim/flat_step.h"
#include "weft/optim/tensor_sums.h"

namespace weft::optim {

struct Adafactor {
  double lr = 1e-2;
  double decay_power = -0.8;
  double eps1 = 1e-30;
  double eps2 = 1e-3;
  double clip = 1.0;
  double beta1 = 0.0;  // 0: no average, and no state for it.
  double weight_decay = 0.0;
  bool operator==(const Adafactor&) const = default;
};

// A tensor as `outer` matrices of rows x columns. rows = 0: `columns` numbers that are not
// factored.
struct FactoredShape {
  std::int64_t outer = 1, rows = 0, columns = 0;
  bool is_factored() const { return rows > 0; }
  // Number of sums of a step, and of numbers of the state.
  std::size_t sums() const { return static_cast<std::size_t>(outer * (rows + columns)); }
  double elements() const { return static_cast<double>(outer * (rows > 0 ? rows : 1) * columns); }
};
FactoredShape factored_shape(const std::vector<std::int64_t>& sizes);

// The first third of a step: adds the squares of the gradient of elements [begin, begin + at.count)
// of the tensor to the sums from `first` on. Number: float or double, here and below.
template <class Number>
void add_gradient(const FlatStep<Number>& at, std::int64_t begin, const FactoredShape& shape,
                  TensorSums& sums, std::size_t first);

// The second third, from the sums over all elements: updates R and C, which lie one after the other
// in `moments`. Returns factors f, so that u_ij = g_ij f_i f_(outer * rows + j); for tensors that
// are not factored, u_i = g_i f_i.
template <class Number>
std::vector<Number> update_moments(const Adafactor& rule, std::int64_t step,
                                   const FactoredShape& shape, const TensorSums& sums,
                                   std::size_t first, Number* moments);

// Adds the squares of weights and of u to the sums `sum` and `sum` + 1.
template <class Number>
void add_update(const FlatStep<Number>& at, std::int64_t begin, const FactoredShape& shape,
                const std::vector<Number>& factors, TensorSums& sums, std::size_t sum);

// The last third, with the root mean squares over the whole tensor: updates the weights and m.
struct RootMeans {
  double weight = 0, update = 0;
};
template <class Number>
void end_step(const Adafactor& rule, const FlatStep<Number>& at, std::int64_t begin,
              const FactoredShape& shape, const std::vector<Number>& factors,
              const RootMeans& means);

}  // namespace weft::optim
