#include "weft/engine/internal/updates.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <variant>

#include "weft/base/fault/failpoint.h"
#include "weft/engine/internal/device_updates.h"

namespace weft::engine::internal {

bool is_orthogonal(const OptimizerSpec& spec, const std::string& name, at::IntArrayRef sizes) {
  return std::holds_alternative<optim::Muon>(spec.rule) && sizes.size() >= 2 &&
         c10::multiply_integers(sizes) > 0 && !(spec.not_orthogonal && spec.not_orthogonal(name));
}

std::size_t arrays_of(const OptimizerSpec& spec, const std::string& name, at::IntArrayRef sizes) {
  return is_orthogonal(spec, name, sizes) ? 1 : state_names(spec.rule).size();
}

Updates::Updates(OptimizerSpec spec, std::vector<std::string> names,
                 const std::vector<at::ScalarType>& types,
                 const std::vector<std::vector<std::int64_t>>& shapes)
    : spec_(std::move(spec)),
      rules_(spec_, names),
      arrays_(state_names(spec_.rule)),
      types_(types),
      places_(names.size()),
      device_places_(names.size()),
      steps_(names.size(), 0) {
  for (std::size_t param = 0; param < names.size(); ++param)
    counts_.push_back(internal::arrays_of(spec_, names[param], shapes[param]));
}

void Updates::update(int param, std::int64_t begin, std::int64_t end, const void* gradient) const {
  const UpdateRule rule = this->rule(param);
  if (is_failpoint("update.middle")) end = begin + (end - begin + 1) / 2;  // fails below
  if (types_[index(param)] == at::kDouble) {
    update_as<double>(rule, param, begin, end, gradient);
  } else {
    update_as<float>(rule, param, begin, end, gradient);
  }
  failpoint("update.middle");
}

void Updates::put_on_device(int param, at::Tensor weight, std::vector<at::Tensor> state) {
  device_places_[index(param)] = {std::move(weight), std::move(state)};
}

void Updates::update_all(const std::vector<std::pair<int, at::Tensor>>& gradients) const {
  struct Alike {
    UpdateRule rule;
    std::int64_t step;
    at::ScalarType type;
    DeviceTensors tensors;
  };
  std::vector<Alike> groups;
  for (const auto& [param, gradient] : gradients) {
    const DevicePlace& place = device_places_[index(param)];
    if (!place.weight.defined()) {
      update(param, 0, gradient.numel(), gradient.const_data_ptr());
      continue;
    }
    const UpdateRule rule = this->rule(param);
    const auto is_alike = [&, number = param](const Alike& group) {
      return group.step == step(number) && group.type == type(number) && group.rule == rule;
    };
    auto found = std::find_if(groups.begin(), groups.end(), is_alike);
    if (found == groups.end())
      found = groups.insert(groups.end(), Alike{rule, step(param), type(param), {}});
    found->tensors.weights.push_back(place.weight);
    found->tensors.gradients.push_back(gradient);
    for (std::size_t array = 0; array < place.state.size(); ++array)
      found->tensors.state[array].push_back(place.state[array]);
  }
  for (const Alike& group : groups) update_on_device(group.rule, group.step, group.tensors);
}

template <class Number>
void Updates::update_as(const UpdateRule& rule, int param, std::int64_t begin, std::int64_t end,
                        const void* gradient) const {
  const optim::FlatStep<Number> step = flat_step<Number>(param, begin, end, gradient);
  if constexpr (std::is_same_v<Number, float>) {
    if (velocity_comes_) return update_with_velocity(rule, step);
  }
  optim::update_flat(rule, step);
}

compress::Momentum Updates::hand_over_momentum() {
  const auto* const sgd = std::get_if<kernels::Sgd>(&spec_.rule);
  const bool alike = std::none_of(spec_.groups.begin(), spec_.groups.end(),
                                  [](const ParamGroup& group) { return group.rule.has_value(); });
  if (sgd == nullptr || sgd->momentum == 0 || sgd->dampening != 0 || !alike) return {};
  velocity_comes_ = true;
  return {sgd->momentum, sgd->nesterov};
}

// SGD's velocity is a linear sum, so it can be kept in two places. The codec keeps the velocity of
// the gradients. The velocity of weight decay, and the part that existed at the handover, continues
// here as if gradients were zero.
void Updates::update_with_velocity(const UpdateRule& rule, const optim::FlatStep<float>& at) const {
  static constexpr std::array<float, 4096> kZeros{};
  kernels::Sgd rest = std::get<kernels::Sgd>(rule);
  rest.momentum = 0;
  rest.nesterov = false;
  rest.regularizer = {};
  for (std::int64_t done = 0; done < at.count; done += static_cast<std::int64_t>(kZeros.size())) {
    optim::FlatStep<float> part{.weight = at.weight + done,
                                .gradient = kZeros.data(),
                                .state = {at.state[0] + done},
                                .step = at.step};
    part.count = std::min(at.count - done, static_cast<std::int64_t>(kZeros.size()));
    optim::update_flat(rule, part);
    part.gradient = at.gradient + done;
    part.state = {};
    optim::update_flat(rest, part);
  }
}

void Updates::stepped(const std::vector<bool>& used) {
  held_.reset();
  for (std::size_t param = 0; param < steps_.size(); ++param) steps_[param] += used[param] ? 1 : 0;
}

at::Tensor Updates::state(int param, std::size_t array, at::IntArrayRef sizes) const {
  if (const DevicePlace& place = device_places_[index(param)]; place.weight.defined())
    return place.state[array];
  return at::from_blob(places_[index(param)].state[array], sizes,
                       at::TensorOptions(types_[index(param)]));
}

}  // namespace weft::engine::internal
