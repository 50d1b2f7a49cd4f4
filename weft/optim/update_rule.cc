#include "weft/optim/update_rule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::optim {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

double regularized(double gradient, double weight, const kernels::Regularizer& r) {
  return gradient + r.l2 * weight + r.l1 * static_cast<double>((weight > 0) - (weight < 0));
}

void step_in_double(const kernels::Sgd& o, const FlatStep<double>& at) {
  for (std::int64_t i = 0; i < at.count; ++i) {
    double g = regularized(at.gradient[i], at.weight[i], o.regularizer);
    if (o.momentum != 0) {
      double& m = at.state[0][i];
      m = at.step == 1 ? g : o.momentum * m + (1 - o.dampening) * g;
      g = o.nesterov ? g + o.momentum * m : m;
    }
    at.weight[i] -= o.lr * g;
  }
}

void step_in_double(const kernels::RmsProp& o, const FlatStep<double>& at) {
  const bool moves = o.momentum > 0;
  for (std::int64_t i = 0; i < at.count; ++i) {
    const double g = regularized(at.gradient[i], at.weight[i], o.regularizer);
    double& square = at.state[0][i];
    square = o.alpha * square + (1 - o.alpha) * g * g;
    double variance = square;
    if (o.centered) {
      double& mean = at.state[moves ? 2 : 1][i];
      mean += (1 - o.alpha) * (g - mean);
      variance -= mean * mean;
    }
    double change = g / (std::sqrt(variance) + o.eps);
    if (moves) change = at.state[1][i] = o.momentum * at.state[1][i] + change;
    at.weight[i] -= o.lr * change;
  }
}

void step_in_double(const kernels::Adagrad& o, const FlatStep<double>& at) {
  const double lr = o.lr / (1 + static_cast<double>(at.step - 1) * o.lr_decay);
  for (std::int64_t i = 0; i < at.count; ++i) {
    const double g = regularized(at.gradient[i], at.weight[i], o.regularizer);
    at.state[0][i] += g * g;
    at.weight[i] -= lr * g / (std::sqrt(at.state[0][i]) + o.eps);
  }
}

void step_in_double(const kernels::Adam& o, const FlatStep<double>& at) {
  const double step = static_cast<double>(at.step);
  const double lr = o.lr / (1 - std::pow(o.beta1, step)),
               root = std::sqrt(1 - std::pow(o.beta2, step));
  for (std::int64_t i = 0; i < at.count; ++i) {
    const double g = regularized(at.gradient[i], at.weight[i], o.regularizer);
    double& mean = at.state[0][i];
    double& square = at.state[1][i];
    mean += (1 - o.beta1) * (g - mean);
    square = o.beta2 * square + (1 - o.beta2) * g * g;
    double variance = square;
    if (o.amsgrad) variance = at.state[2][i] = std::max(at.state[2][i], square);
    at.weight[i] -= o.lr * o.decoupled_decay * at.weight[i];
    at.weight[i] -= lr * mean / (std::sqrt(variance) / root + o.eps);
  }
}

void step_in_double(const kernels::Lion& o, const FlatStep<double>& at) {
  for (std::int64_t i = 0; i < at.count; ++i) {
    const double g = regularized(at.gradient[i], at.weight[i], o.regularizer);
    double& mean = at.state[0][i];
    const double way = o.beta1 * mean + (1 - o.beta1) * g;
    at.weight[i] -= o.lr * o.decoupled_decay * at.weight[i];
    at.weight[i] -= o.lr * static_cast<double>((way > 0) - (way < 0));
    mean = o.beta2 * mean + (1 - o.beta2) * g;
  }
}

class OptionCheck {
 public:
  explicit OptionCheck(std::string rule) : rule_(std::move(rule)) {}
  void at_least_0(const char* option, double value) const {
    require(option, value, value >= 0, "at least 0");
  }
  void below_1(const char* option, double value) const {
    require(option, value, value >= 0 && value < 1, "at least 0 and below 1");
  }
  void above_0(const char* option, double value) const {
    require(option, value, value > 0, "above 0");
  }
  void at_most_0(const char* option, double value) const {
    require(option, value, value <= 0 && std::isfinite(value), "finite and at most 0");
  }
  void nesterov(bool good) const {
    WEFT_REQUIRE(
        good, "optimizer: " + rule_ + " with nesterov needs a momentum above 0 and no dampening");
  }

 private:
  void require(const char* option, double value, bool good, const char* range) const {
    WEFT_REQUIRE(good, "optimizer: " + rule_ + " has " + option + " = " + json_number(value) +
                           "; it must be " + range);
  }
  std::string rule_;
};

[[noreturn]] void refuse_flat(const UpdateRule& rule) {
  throw Error(Errc::kInvalidArgument,
              "update_flat: " + name_of(rule) + " needs sums over whole tensors");
}

}  // namespace

std::vector<std::string> state_names(const UpdateRule& rule) {
  return std::visit(
      Overloaded{[](const kernels::Sgd& o) {
                   return o.momentum != 0 ? std::vector<std::string>{"momentum_buffer"}
                                          : std::vector<std::string>{};
                 },
                 [](const kernels::RmsProp& o) {
                   std::vector<std::string> names{"square_avg"};
                   if (o.momentum > 0) names.push_back("momentum_buffer");
                   if (o.centered) names.push_back("grad_avg");
                   return names;
                 },
                 [](const kernels::Adagrad&) { return std::vector<std::string>{"sum"}; },
                 [](const kernels::Adam& o) {
                   std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
                   if (o.amsgrad) names.push_back("max_exp_avg_sq");
                   return names;
                 },
                 [](const kernels::Lion&) { return std::vector<std::string>{"exp_avg"}; },
                 [](const Lars& o) {
                   return o.momentum != 0 ? std::vector<std::string>{"momentum_buffer"}
                                          : std::vector<std::string>{};
                 },
                 [](const Lamb&) {
                   return std::vector<std::string>{"exp_avg", "exp_avg_sq"};
                 },
                 [](const Adafactor& o) {
                   return o.beta1 != 0 ? std::vector<std::string>{"exp_avg"}
                                       : std::vector<std::string>{};
                 },
                 [](const Muon&) {
                   return std::vector<std::string>{"exp_avg", "exp_avg_sq"};
                 }},
      rule);
}

std::vector<TensorState> tensor_states(const UpdateRule& rule,
                                       const std::vector<std::int64_t>& sizes) {
  if (!std::holds_alternative<Adafactor>(rule)) return {};
  if (!factored_shape(sizes).is_factored()) return {{"exp_avg_sq", sizes}};
  std::vector<std::int64_t> row(sizes.begin(), sizes.end() - 1), column = sizes;
  column.erase(column.end() - 2);
  return {{"exp_avg_sq_row", row}, {"exp_avg_sq_col", column}};
}

std::string name_of(const UpdateRule& rule) {
  static constexpr const char* kNames[] = {"sgd",  "rmsprop", "adagrad",   "adam", "lion",
                                           "lars", "lamb",    "adafactor", "muon"};
  static_assert(std::size(kNames) == std::variant_size_v<UpdateRule>);
  return kNames[rule.index()];
}

bool needs_whole_tensors(const UpdateRule& rule) {
  return std::visit(
      []<class Rule>(const Rule&) {
        return !requires(Rule r) { r.regularizer; };
      },
      rule);
}

void check_rule(const UpdateRule& rule) {
  const OptionCheck check(name_of(rule));
  std::visit(
      [&]<class Rule>(const Rule& o) {
        check.at_least_0("lr", o.lr);
        if constexpr (requires { o.lr_decay; }) check.at_least_0("lr_decay", o.lr_decay);
        if constexpr (requires { o.momentum; }) check.at_least_0("momentum", o.momentum);
        if constexpr (requires { o.alpha; }) check.at_least_0("alpha", o.alpha);
        if constexpr (requires { o.beta1; }) check.below_1("beta1", o.beta1);
        if constexpr (requires { o.beta2; }) check.below_1("beta2", o.beta2);
        if constexpr (requires { o.eps; }) check.at_least_0("eps", o.eps);
        if constexpr (requires { o.eps1; }) check.at_least_0("eps1", o.eps1);
        if constexpr (requires { o.eps2; }) check.at_least_0("eps2", o.eps2);
        if constexpr (requires { o.trust; }) check.at_least_0("trust", o.trust);
        if constexpr (requires { o.adam_lr; }) check.at_least_0("adam_lr", o.adam_lr);
        if constexpr (requires { o.decay_power; }) check.at_most_0("decay_power", o.decay_power);
        if constexpr (requires { o.clip; }) check.above_0("clip", o.clip);
        if constexpr (requires { o.weight_decay; })
          check.at_least_0("weight_decay", o.weight_decay);
        if constexpr (requires { o.decoupled_decay; })
          check.at_least_0("weight_decay", o.decoupled_decay);
        if constexpr (requires { o.regularizer; }) {
          check.at_least_0("weight_decay", o.regularizer.l2);
          check.at_least_0("l1", o.regularizer.l1);
        }
        if constexpr (requires { o.dampening; }) {
          check.nesterov(!o.nesterov || (o.momentum > 0 && o.dampening == 0));
        } else if constexpr (std::is_same_v<Rule, Lars>) {
          check.nesterov(!o.nesterov || o.momentum > 0);
        }
      },
      rule);
}

UpdateRule with_decay(const UpdateRule& rule, double scale) {
  return std::visit(
      [scale](auto copy) -> UpdateRule {
        if constexpr (requires { copy.regularizer; }) {
          copy.regularizer.l1 *= scale;
          copy.regularizer.l2 *= scale;
        }
        if constexpr (requires { copy.decoupled_decay; }) copy.decoupled_decay *= scale;
        if constexpr (requires { copy.weight_decay; }) copy.weight_decay *= scale;
        return copy;
      },
      rule);
}

ParamRules::ParamRules(const OptimizerSpec& spec, const std::vector<std::string>& names) {
  check_rule(spec.rule);
  for (const ParamGroup& group : spec.groups) {
    if (group.rule) check_rule(*group.rule);
  }
  for (const auto& name : names) {
    Own own;
    const auto group =
        std::find_if(spec.groups.begin(), spec.groups.end(),
                     [&](const ParamGroup& one) { return one.which && one.which(name); });
    if (group != spec.groups.end()) {
      const auto good = [](double number) { return std::isfinite(number) && number >= 0; };
      WEFT_REQUIRE(good(group->lr_scale) && good(group->decay_scale),
                   "optimizer: a parameter group's scales must be finite and at least 0");
      const bool alike = !group->rule || (group->rule->index() == spec.rule.index() &&
                                          state_names(*group->rule) == state_names(spec.rule));
      WEFT_REQUIRE(alike,
                   "optimizer: a parameter group's rule is of the optimizer's kind and keeps the "
                   "same state (momentum, amsgrad, …)");
      own = {group->lr_scale, group->decay_scale, group->rule};
    }
    if (spec.no_decay && spec.no_decay(name)) own.decay = 0;
    own_.push_back(std::move(own));
  }
}

UpdateRule ParamRules::of(std::size_t param, const UpdateRule& rule) const {
  const Own& its = own_[param];
  UpdateRule own = its.rule.value_or(rule);
  if (its.decay != 1) own = with_decay(own, its.decay);
  if (its.rule || its.lr != 1) set_lr(own, its.lr * lr_of(rule));
  return own;
}

double lr_of(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return r.lr; }, rule);
}

void set_lr(UpdateRule& rule, double lr) {
  std::visit([lr](auto& r) { r.lr = lr; }, rule);
}

void update_flat(const UpdateRule& rule, const FlatStep<float>& at) {
  const auto& s = at.state;
  std::visit(
      Overloaded{
          [&](const kernels::Sgd& o) {
            kernels::sgd(at.weight, at.gradient, s[0], at.count, at.step, o);
          },
          [&](const kernels::RmsProp& o) {
            float* const mean = o.centered ? s[o.momentum > 0 ? 2 : 1] : nullptr;
            kernels::rmsprop(at.weight, at.gradient, s[0], o.momentum > 0 ? s[1] : nullptr, mean,
                             at.count, o);
          },
          [&](const kernels::Adagrad& o) {
            kernels::adagrad(at.weight, at.gradient, s[0], at.count, at.step, o);
          },
          [&](const kernels::Adam& o) {
            kernels::adam(at.weight, at.gradient, s[0], s[1], s[2], at.count, at.step, o);
          },
          [&](const kernels::Lion& o) { kernels::lion(at.weight, at.gradient, s[0], at.count, o); },
          [&](const auto&) { refuse_flat(rule); }},
      rule);
}

void update_flat(const UpdateRule& rule, const FlatStep<double>& at) {
  std::visit(
      [&](const auto& o) {
        if constexpr (requires { step_in_double(o, at); }) {
          step_in_double(o, at);
        } else {
          refuse_flat(rule);
        }
      },
      rule);
}

}  // namespace weft::optim
