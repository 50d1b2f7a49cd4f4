#include "weft/parallel/data/internal/updater.h"

namespace weft::parallel::internal {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

UpdateRule without_decay(const UpdateRule& rule) {
  return std::visit(
      [](auto copy) -> UpdateRule {
        copy.regulariser = {};
        if constexpr (std::is_same_v<decltype(copy), kernels::Adam>) copy.decoupled_decay = 0;
        return copy;
      },
      rule);
}

}  // namespace

Layout layout_of(const std::vector<at::Tensor>& params) {
  Layout layout;
  for (const auto& param : params) {
    layout.offsets.push_back(layout.elements);
    layout.elements += (param.numel() + 15) / 16 * 16;
  }
  return layout;
}

std::vector<std::string> RuleUpdater::state_names(const UpdateRule& rule) {
  return std::visit(Overloaded{[](const kernels::Sgd& o) {
                                 return o.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
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
                               }},
                    rule);
}

RuleUpdater::RuleUpdater(OptimizerSpec spec, Layout layout, std::vector<float*> weights, std::vector<float*> state,
                         const std::vector<std::string>& names)
    : spec_(std::move(spec)), layout_(std::move(layout)), weights_(std::move(weights)), state_(std::move(state)), steps_(names.size(), 0) {
  for (const auto& name : names) no_decay_.push_back(spec_.no_decay && spec_.no_decay(name));
}

float* RuleUpdater::state(std::size_t array, int param) const {
  return array < state_.size() ? state_[array] + layout_.offsets[static_cast<std::size_t>(param)] : nullptr;
}

void RuleUpdater::update(int param, std::int64_t begin, std::int64_t end, const float* gradient) {
  float* const weight = weights_[static_cast<std::size_t>(param)] + begin;
  const std::int64_t count = end - begin, step = steps_[static_cast<std::size_t>(param)] + 1;
  const auto at = [&](std::size_t array) { return array < state_.size() ? state(array, param) + begin : nullptr; };
  const bool bare = no_decay_[static_cast<std::size_t>(param)];
  const UpdateRule& now = held_ ? *held_ : spec_.rule;
  const UpdateRule rule = bare ? without_decay(now) : now;
  std::visit(Overloaded{[&](const kernels::Sgd& o) { kernels::sgd(weight, gradient, at(0), count, step, o); },
                        [&](const kernels::RmsProp& o) {
                          const std::size_t average = o.momentum > 0 ? 2 : 1;
                          kernels::rmsprop(weight, gradient, at(0), o.momentum > 0 ? at(1) : nullptr, o.centered ? at(average) : nullptr,
                                           count, o);
                        },
                        [&](const kernels::Adagrad& o) { kernels::adagrad(weight, gradient, at(0), count, step, o); },
                        [&](const kernels::Adam& o) { kernels::adam(weight, gradient, at(0), at(1), at(2), count, step, o); }},
             rule);
}

void RuleUpdater::stepped(const std::vector<bool>& used) {
  held_.reset();
  for (std::size_t param = 0; param < steps_.size(); ++param) steps_[param] += used[param] ? 1 : 0;
}

double RuleUpdater::lr() const {
  return std::visit([](const auto& rule) { return rule.lr; }, spec_.rule);
}

void RuleUpdater::set_lr(double lr) {
  std::visit([lr](auto& rule) { rule.lr = lr; }, spec_.rule);
}

}  // namespace weft::parallel::internal
