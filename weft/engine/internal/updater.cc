#include "weft/engine/internal/updater.h"

#include <algorithm>
#include <array>

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
    : spec_(std::move(spec)),
      layout_(std::move(layout)),
      weights_(std::move(weights)),
      state_(std::move(state)),
      steps_(names.size(), 0),
      rules_(spec_, names) {}

float* RuleUpdater::state(std::size_t array, int param) const {
  return array < state_.size() ? state_[array] + layout_.offsets[static_cast<std::size_t>(param)] : nullptr;
}

void RuleUpdater::update(int param, std::int64_t begin, std::int64_t end, const float* gradient) {
  const auto place = static_cast<std::size_t>(param);
  FlatStep<float> at{.weight = weights_[place] + begin, .gradient = gradient, .count = end - begin, .step = steps_[place] + 1};
  for (std::size_t array = 0; array < state_.size(); ++array) at.state[array] = state(array, param) + begin;
  const UpdateRule now = rules_.of(place, held_ ? *held_ : spec_.rule);
  if (velocity_comes_) return update_with_velocity(now, at);
  update_flat(now, at);
}

compress::Momentum RuleUpdater::hand_over_momentum() {
  const auto* const sgd = std::get_if<kernels::Sgd>(&spec_.rule);
  const bool alike = std::none_of(spec_.groups.begin(), spec_.groups.end(), [](const ParamGroup& group) { return group.rule.has_value(); });
  if (sgd == nullptr || sgd->momentum == 0 || sgd->dampening != 0 || !alike) return {};
  velocity_comes_ = true;
  return {sgd->momentum, sgd->nesterov};
}

// SGD's velocity is a sum over gradients, so it may be kept in two places: that of gradients comes in them; that of weight decay, and what
// was left when it was handed over, goes on here, as if gradients were zero.
void RuleUpdater::update_with_velocity(const UpdateRule& rule, const FlatStep<float>& at) const {
  static constexpr std::array<float, 4096> kZeros{};
  kernels::Sgd rest = std::get<kernels::Sgd>(rule);
  rest.momentum = 0;
  rest.nesterov = false;
  rest.regulariser = {};
  for (std::int64_t done = 0; done < at.count; done += static_cast<std::int64_t>(kZeros.size())) {
    FlatStep<float> part{.weight = at.weight + done, .gradient = kZeros.data(), .state = {at.state[0] + done}, .step = at.step};
    part.count = std::min(at.count - done, static_cast<std::int64_t>(kZeros.size()));
    update_flat(rule, part);
    part.gradient = at.gradient + done;
    part.state = {};
    update_flat(rest, part);
  }
}

void RuleUpdater::stepped(const std::vector<bool>& used) {
  held_.reset();
  for (std::size_t param = 0; param < steps_.size(); ++param) steps_[param] += used[param] ? 1 : 0;
}

double RuleUpdater::lr() const { return lr_of(spec_.rule); }

void RuleUpdater::set_lr(double lr) { parallel::set_lr(spec_.rule, lr); }

}  // namespace weft::parallel::internal
