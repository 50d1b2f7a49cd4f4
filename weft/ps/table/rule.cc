#include "weft/ps/table/rule.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::ps {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

void require_range(const char* rule, const char* name, double value, bool holds) {
  WEFT_REQUIRE(holds && std::isfinite(value),
               std::string(rule) + ": " + name + " = " + json_number(value) + " is out of range");
}

void check_decay(const char* rule, const kernels::Regularizer& regularizer) {
  require_range(rule, "l1", regularizer.l1, regularizer.l1 >= 0);
  require_range(rule, "l2", regularizer.l2, regularizer.l2 >= 0);
}

void check_sgd(const kernels::Sgd& sgd) {
  require_range("sgd", "lr", sgd.lr, sgd.lr >= 0);
  require_range("sgd", "momentum", sgd.momentum, sgd.momentum >= 0 && sgd.momentum < 1);
  require_range("sgd", "dampening", sgd.dampening, sgd.dampening >= 0 && sgd.dampening <= 1);
  WEFT_REQUIRE(!sgd.nesterov || (sgd.momentum > 0 && sgd.dampening == 0),
               "sgd: nesterov needs a momentum and no dampening");
  check_decay("sgd", sgd.regularizer);
}

void check_adagrad(const Adagrad& adagrad) {
  require_range("adagrad", "lr", adagrad.rule.lr, adagrad.rule.lr >= 0);
  require_range("adagrad", "lr_decay", adagrad.rule.lr_decay, adagrad.rule.lr_decay >= 0);
  require_range("adagrad", "eps", adagrad.rule.eps, adagrad.rule.eps >= 0);
  require_range("adagrad", "initial_accumulator", adagrad.initial_accumulator,
                adagrad.initial_accumulator >= 0);
  check_decay("adagrad", adagrad.rule.regularizer);
}

void check_adam(const kernels::Adam& adam) {
  require_range("adam", "lr", adam.lr, adam.lr >= 0);
  require_range("adam", "beta1", adam.beta1, adam.beta1 >= 0 && adam.beta1 < 1);
  require_range("adam", "beta2", adam.beta2, adam.beta2 >= 0 && adam.beta2 < 1);
  require_range("adam", "eps", adam.eps, adam.eps >= 0);
  require_range("adam", "decoupled_decay", adam.decoupled_decay, adam.decoupled_decay >= 0);
  check_decay("adam", adam.regularizer);
}

void check_ftrl(const Ftrl& ftrl) {
  require_range("ftrl", "alpha", ftrl.alpha, ftrl.alpha > 0);
  require_range("ftrl", "beta", ftrl.beta, ftrl.beta >= 0);
  require_range("ftrl", "l1", ftrl.l1, ftrl.l1 >= 0);
  require_range("ftrl", "l2", ftrl.l2, ftrl.l2 >= 0);
  WEFT_REQUIRE(ftrl.beta > 0 || ftrl.l2 > 0, "ftrl: beta or l2 must be above 0");
}

float sign_of(float value) { return (value > 0.0f ? 1.0f : 0.0f) - (value < 0.0f ? 1.0f : 0.0f); }

void init_ftrl(const Ftrl& ftrl, const RowValues& row) {
  const float curvature = static_cast<float>(ftrl.beta / ftrl.alpha + ftrl.l2);
  const float l1 = static_cast<float>(ftrl.l1);
  for (std::int64_t i = 0; i < row.count; ++i) {
    const float w = row.weights[i];
    row.state[i] = w == 0.0f ? 0.0f : -w * curvature - sign_of(w) * l1;
    row.state[row.count + i] = 0.0f;
  }
}

// σ α = sqrt(n + g²) - sqrt(n) is computed as g² / (sqrt(n + g²) + sqrt(n)), because the difference
// loses its digits when n is large. The smallest normal number keeps 0 / 0 from being NaN.
void ftrl_pass(const Ftrl& ftrl, const RowValues& row, const float* gradient) {
  const float rate = static_cast<float>(1.0 / ftrl.alpha);
  const float base = static_cast<float>(ftrl.beta / ftrl.alpha + ftrl.l2);
  const float l1 = static_cast<float>(ftrl.l1);
  float* weights = row.weights;
  float* linear = row.state;
  float* squares = row.state + row.count;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < row.count; ++i) {
    const float g = gradient[i], square = g * g, n = squares[i], sum = n + square;
    const float root = __builtin_sqrtf(sum);
    const float sigma = rate * (square / (root + __builtin_sqrtf(n) + FLT_MIN));
    const float z = linear[i] + (g - sigma * weights[i]);
    const float size = __builtin_fabsf(z) - l1;
    const float moved = (z > 0.0f ? -size : size) / (base + rate * root);
    linear[i] = z;
    squares[i] = sum;
    weights[i] = size > 0.0f ? moved : 0.0f;
  }
}

void add_pass(const RowValues& row, const float* gradient) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < row.count; ++i) row.weights[i] += gradient[i];
}

}  // namespace

std::string rule_name(const RowRule& rule) {
  constexpr const char* kNames[] = {"add", "sgd", "adagrad", "adam", "ftrl"};
  static_assert(std::size(kNames) == std::variant_size_v<RowRule>);
  return kNames[rule.index()];
}

int state_arrays(const RowRule& rule) {
  return std::visit(Overloaded{[](const Add&) { return 0; },
                               [](const kernels::Sgd& sgd) { return sgd.momentum != 0 ? 1 : 0; },
                               [](const Adagrad&) { return 1; },
                               [](const kernels::Adam& adam) { return adam.amsgrad ? 3 : 2; },
                               [](const Ftrl&) { return 2; }},
                    rule);
}

void check(const RowRule& rule) {
  std::visit(Overloaded{[](const Add&) {}, [](const kernels::Sgd& sgd) { check_sgd(sgd); },
                        [](const Adagrad& adagrad) { check_adagrad(adagrad); },
                        [](const kernels::Adam& adam) { check_adam(adam); },
                        [](const Ftrl& ftrl) { check_ftrl(ftrl); }},
             rule);
}

void set_lr(RowRule& rule, double lr) {
  std::visit(Overloaded{[](Add&) {
                          throw Error(Errc::kInvalidArgument,
                                      "add has no learning rate: deltas are added as they are");
                        },
                        [&](kernels::Sgd& sgd) { sgd.lr = lr; },
                        [&](Adagrad& adagrad) { adagrad.rule.lr = lr; },
                        [&](kernels::Adam& adam) { adam.lr = lr; },
                        [](Ftrl&) {
                          throw Error(Errc::kInvalidArgument,
                                      "the learning rate of ftrl cannot change: its state depends "
                                      "on it");
                        }},
             rule);
}

void init_state(const RowRule& rule, const RowValues& row) {
  if (const auto* ftrl = std::get_if<Ftrl>(&rule)) return init_ftrl(*ftrl, row);
  const auto* adagrad = std::get_if<Adagrad>(&rule);
  const float first = adagrad ? static_cast<float>(adagrad->initial_accumulator) : 0.0f;
  std::fill_n(row.state, state_arrays(rule) * row.count, first);
}

void update_row(const RowRule& rule, const RowValues& row, const float* gradient,
                std::int64_t step) {
  const auto [weights, state, count] = row;
  switch (rule.index()) {
    case 0: return add_pass(row, gradient);
    case 1: return kernels::sgd(weights, gradient, state, count, step, std::get<1>(rule));
    case 2: return kernels::adagrad(weights, gradient, state, count, step, std::get<2>(rule).rule);
    case 3: {
      const auto& adam = std::get<3>(rule);
      return kernels::adam(weights, gradient, state, state + count,
                           adam.amsgrad ? state + 2 * count : nullptr, count, step, adam);
    }
    default: return ftrl_pass(std::get<Ftrl>(rule), row, gradient);
  }
}

}  // namespace weft::ps
