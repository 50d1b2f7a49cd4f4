#include "weft/parallel/data/internal/updater.h"

#include "weft/parallel/data/update_rule.h"

namespace weft::parallel::internal {
Layout layout_of(const std::vector<at::Tensor>& params) {
  Layout layout;
  for (const auto& param : params) {
    layout.offsets.push_back(layout.elements);
    layout.elements += (param.numel() + 15) / 16 * 16;
  }
  return layout;
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
  const auto place = static_cast<std::size_t>(param);
  FlatStep<float> at{.weight = weights_[place] + begin, .gradient = gradient, .count = end - begin, .step = steps_[place] + 1};
  for (std::size_t array = 0; array < state_.size(); ++array) at.state[array] = state(array, param) + begin;
  const UpdateRule& now = held_ ? *held_ : spec_.rule;
  update_flat(no_decay_[place] ? without_decay(now) : now, at);
}

void RuleUpdater::stepped(const std::vector<bool>& used) {
  held_.reset();
  for (std::size_t param = 0; param < steps_.size(); ++param) steps_[param] += used[param] ? 1 : 0;
}

double RuleUpdater::lr() const { return lr_of(spec_.rule); }

void RuleUpdater::set_lr(double lr) { parallel::set_lr(spec_.rule, lr); }

}  // namespace weft::parallel::internal
