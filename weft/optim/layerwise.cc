#include "weft/optim/layerwise.h"

#include <algorithm>
#include <cmath>

namespace weft::optim {
namespace {

constexpr std::int64_t kUpdateBlock = 1024;  // elements of an update that stay in the L1 cache

double ratio_of(const Lars& rule, const TensorNorms& norms) {
  if (norms.is_vector) return 1;
  if (norms.weight == 0 || norms.update == 0) return 1;
  return rule.trust * norms.weight / (norms.update + rule.weight_decay * norms.weight);
}

}  // namespace

template <class Number>
void begin_step(const Lars&, const FlatStep<Number>& at, TensorSums& sums, std::size_t sum) {
  sums.add_squares(sum, at.weight, at.count);
  sums.add_squares(sum + 1, at.gradient, at.count);
}

template <class Number>
void end_step(const Lars& rule, const FlatStep<Number>& at, const TensorNorms& norms) {
  const auto ratio = static_cast<Number>(ratio_of(rule, norms)),
             decay = static_cast<Number>(norms.is_vector ? 0 : rule.weight_decay),
             momentum = static_cast<Number>(rule.momentum), lr = static_cast<Number>(rule.lr);
  Number* const kept = at.state[0];
  for (std::int64_t i = 0; i < at.count; ++i) {
    Number change = ratio * (at.gradient[i] + decay * at.weight[i]);
    if (kept != nullptr) {
      kept[i] = momentum * kept[i] + change;
      change = rule.nesterov ? change + momentum * kept[i] : kept[i];
    }
    at.weight[i] -= lr * change;
  }
}

namespace {

// u of elements [begin, begin + count), from the new m and v.
template <class Number>
class LambUpdate {
 public:
  LambUpdate(const Lamb& rule, const FlatStep<Number>& at)
      : at_(at),
        mean_(static_cast<Number>(1 / (1 - std::pow(rule.beta1, static_cast<double>(at.step))))),
        square_(static_cast<Number>(1 / (1 - std::pow(rule.beta2, static_cast<double>(at.step))))),
        eps_(static_cast<Number>(rule.eps)),
        decay_(static_cast<Number>(rule.weight_decay)) {}
  void write(std::int64_t begin, std::int64_t count, Number* into) const {
    const Number *const m = at_.state[0] + begin, *const v = at_.state[1] + begin,
                        *const w = at_.weight + begin;
    for (std::int64_t i = 0; i < count; ++i)
      into[i] = mean_ * m[i] / (std::sqrt(square_ * v[i]) + eps_) + decay_ * w[i];
  }

 private:
  const FlatStep<Number>& at_;
  const Number mean_, square_, eps_, decay_;
};

}  // namespace

template <class Number>
void begin_step(const Lamb& rule, const FlatStep<Number>& at, TensorSums& sums, std::size_t sum) {
  const auto beta1 = static_cast<Number>(rule.beta1), beta2 = static_cast<Number>(rule.beta2),
             rest1 = static_cast<Number>(1 - rule.beta1),
             rest2 = static_cast<Number>(1 - rule.beta2);
  const LambUpdate<Number> update(rule, at);
  alignas(64) Number block[kUpdateBlock];
  for (std::int64_t begin = 0; begin < at.count; begin += kUpdateBlock) {
    const std::int64_t end = std::min(at.count, begin + kUpdateBlock);
    for (std::int64_t i = begin; i < end; ++i) {
      const Number g = at.gradient[i];
      at.state[0][i] = beta1 * at.state[0][i] + rest1 * g;
      at.state[1][i] = beta2 * at.state[1][i] + rest2 * g * g;
    }
    update.write(begin, end - begin, block);
    sums.add_squares(sum, at.weight + begin, end - begin);
    sums.add_squares(sum + 1, block, end - begin);
  }
}

template <class Number>
void end_step(const Lamb& rule, const FlatStep<Number>& at, const TensorNorms& norms) {
  const double ratio = norms.weight > 0 && norms.update > 0 ? norms.weight / norms.update : 1;
  const auto rate = static_cast<Number>(rule.lr * ratio);
  const LambUpdate<Number> update(rule, at);
  alignas(64) Number block[kUpdateBlock];
  for (std::int64_t begin = 0; begin < at.count; begin += kUpdateBlock) {
    const std::int64_t count = std::min(at.count - begin, kUpdateBlock);
    update.write(begin, count, block);
    for (std::int64_t i = 0; i < count; ++i) at.weight[begin + i] -= rate * block[i];
  }
}

template void begin_step(const Lars&, const FlatStep<float>&, TensorSums&, std::size_t);
template void begin_step(const Lars&, const FlatStep<double>&, TensorSums&, std::size_t);
template void begin_step(const Lamb&, const FlatStep<float>&, TensorSums&, std::size_t);
template void begin_step(const Lamb&, const FlatStep<double>&, TensorSums&, std::size_t);
template void end_step(const Lars&, const FlatStep<float>&, const TensorNorms&);
template void end_step(const Lars&, const FlatStep<double>&, const TensorNorms&);
template void end_step(const Lamb&, const FlatStep<float>&, const TensorNorms&);
template void end_step(const Lamb&, const FlatStep<double>&, const TensorNorms&);

}  // namespace weft::optim
