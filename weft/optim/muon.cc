#include "weft/optim/muon.h"

namespace weft::optim {

template <class Number>
void begin_step(const Muon& rule, const FlatStep<Number>& at, Number* update) {
  const auto keep = static_cast<Number>(rule.momentum),
             rest = static_cast<Number>(1 - rule.momentum);
  Number* const mean = at.state[0];
  for (std::int64_t i = 0; i < at.count; ++i) {
    const Number g = at.gradient[i];
    mean[i] = keep * mean[i] + rest * g;
    update[i] = rule.nesterov ? keep * mean[i] + rest * g : mean[i];
  }
}

template <class Number>
void end_step(const Muon& rule, const FlatStep<Number>& at, const Number* orthogonal,
              double factor) {
  const auto keep = static_cast<Number>(1 - rule.lr * rule.weight_decay),
             rate = static_cast<Number>(rule.lr * factor);
  for (std::int64_t i = 0; i < at.count; ++i)
    at.weight[i] = keep * at.weight[i] - rate * orthogonal[i];
}

template void begin_step(const Muon&, const FlatStep<float>&, float*);
template void begin_step(const Muon&, const FlatStep<double>&, double*);
template void end_step(const Muon&, const FlatStep<float>&, const float*, double);
template void end_step(const Muon&, const FlatStep<double>&, const double*, double);

}  // namespace weft::optim
