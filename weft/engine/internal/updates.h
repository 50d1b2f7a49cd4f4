// Applies an optimizer's rule to the elements that this rank updates, wherever their weights and
// state lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/compress/reducer.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/optimizer.h"

namespace weft::engine::internal {

// True for tensors that Muon makes orthogonal.
bool is_orthogonal(const OptimizerSpec& spec, const std::string& name, at::IntArrayRef sizes);
// Number of state arrays of a parameter: the first ones of state_names(). Muon has one of two for a
// tensor that it makes orthogonal.
std::size_t arrays_of(const OptimizerSpec& spec, const std::string& name, at::IntArrayRef sizes);

class Updates {
 public:
  // Location of element `first` of a parameter and of its state. Earlier elements do not belong to
  // this rank.
  struct Place {
    std::byte* weight = nullptr;
    std::array<std::byte*, 3> state{};  // in the order of state_names(): arrays_of()
    std::int64_t first = 0;
  };

  // Parameters are float32 or float64.
  Updates(OptimizerSpec spec, std::vector<std::string> names,
          const std::vector<at::ScalarType>& types,
          const std::vector<std::vector<std::int64_t>>& shapes);
  void put(int param, const Place& place) { places_[index(param)] = place; }

  // For a parameter on a device, in place of put().
  void put_on_device(int param, at::Tensor weight, std::vector<at::Tensor> state);

  // Updates elements [begin, end) of a parameter in host memory. `gradient` points to element
  // `begin`, in the parameter's type. Call it once per step for each element. Several threads or
  // ranks may update different elements at once.
  void update(int param, std::int64_t begin, std::int64_t end, const void* gradient) const;
  // Element `at` of a parameter in host memory.
  std::byte* weight(int param, std::int64_t at) const {
    const Place& place = places_[index(param)];
    return place.weight +
           (at - place.first) * static_cast<std::int64_t>(c10::elementSize(types_[index(param)]));
  }
  // Calls fn(begin, end, weights) for elements [begin, end) of a parameter in host memory: at once,
  // or in blocks of kBlockBytes, which stay in the cache while they are read several times.
  static constexpr std::int64_t kBlockBytes = 16 << 10;
  template <class Fn>
  void each_block(int param, std::int64_t begin, std::int64_t end, bool in_cache,
                  const Fn& fn) const {
    const auto element = static_cast<std::int64_t>(c10::elementSize(types_[index(param)]));
    const std::int64_t most = in_cache ? kBlockBytes / element : end - begin;
    for (std::int64_t at = begin; at < end; at += most) {
      const std::int64_t last = std::min(end, at + most);
      fn(at, last,
         std::span<const std::byte>(weight(param, at),
                                    static_cast<std::size_t>((last - at) * element)));
    }
  }
  // Updates whole parameters, each with its gradient: in host memory one after the other, on a
  // device in few kernels.
  void update_all(const std::vector<std::pair<int, at::Tensor>>& gradients) const;
  // Calls fn(step) with the FlatStep<float> or FlatStep<double> of these elements, for rules that
  // need whole tensors.
  template <class Fn>
  void visit(int param, std::int64_t begin, std::int64_t end, const void* gradient,
             const Fn& fn) const {
    if (types_[index(param)] == at::kDouble) {
      fn(flat_step<double>(param, begin, end, gradient));
    } else {
      fn(flat_step<float>(param, begin, end, gradient));
    }
  }
  // The current rule of a parameter.
  UpdateRule rule(int param) const { return rules_.of(index(param), held_ ? *held_ : spec_.rule); }
  at::ScalarType type(int param) const { return types_[index(param)]; }
  // Number of the current step of a parameter, from 1.
  std::int64_t step(int param) const { return steps_[index(param)] + 1; }
  // Ends the step: counts it for the parameters that had a gradient.
  void stepped(const std::vector<bool>& used);

  // From now on gradients include SGD's momentum. Returns this momentum. Returns nothing and
  // changes nothing for another rule, for dampening, or for parameter groups with their own rules.
  compress::Momentum hand_over_momentum();
  // Freezes the current rule for the delayed updates of this step, until stepped().
  void hold() { held_ = spec_.rule; }
  bool held() const { return held_.has_value(); }

  OptimizerSpec& spec() { return spec_; }
  const OptimizerSpec& spec() const { return spec_; }
  // Names of the state arrays of the rule, such as "exp_avg".
  const std::vector<std::string>& arrays() const { return arrays_; }
  // How many of them a parameter has: the first ones.
  std::size_t arrays_of(int param) const { return counts_[index(param)]; }
  std::int64_t& steps(int param) { return steps_[index(param)]; }
  // This rank's state of a parameter from element `first` on, in place.
  at::Tensor state(int param, std::size_t array, at::IntArrayRef sizes) const;

 private:
  template <class Number>
  optim::FlatStep<Number> flat_step(int param, std::int64_t begin, std::int64_t end,
                                    const void* gradient) const {
    const Place& place = places_[index(param)];
    const auto at = [&](std::byte* base) {
      return reinterpret_cast<Number*>(base) + (begin - place.first);
    };
    optim::FlatStep<Number> step{.weight = at(place.weight),
                                 .gradient = static_cast<const Number*>(gradient),
                                 .count = end - begin,
                                 .step = steps_[index(param)] + 1};
    for (std::size_t array = 0; array < arrays_of(param); ++array)
      step.state[array] = at(place.state[array]);
    return step;
  }
  template <class Number>
  void update_as(const UpdateRule& rule, int param, std::int64_t begin, std::int64_t end,
                 const void* gradient) const;
  void update_with_velocity(const UpdateRule& rule, const optim::FlatStep<float>& at) const;

  struct DevicePlace {
    at::Tensor weight;  // undefined for a parameter in host memory
    std::vector<at::Tensor> state;
  };

  OptimizerSpec spec_;
  const ParamRules rules_;
  const std::vector<std::string> arrays_;
  std::vector<std::size_t> counts_;          // of arrays, by parameter
  const std::vector<at::ScalarType> types_;  // by parameter
  std::vector<Place> places_;
  std::vector<DevicePlace> device_places_;
  std::vector<std::int64_t> steps_;  // steps done, by parameter
  std::optional<UpdateRule> held_;
  bool velocity_comes_ = false;  // gradients include the momentum
};

}  // namespace weft::engine::internal
