// Applies an optimizer's rule to the elements that this rank updates, wherever their weights and
// state lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/compress/reducer.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/optimizer.h"

namespace weft::parallel::internal {

class Updates {
 public:
  // Where element `first` of a parameter and its state lie. Elements before it are not this rank's.
  struct Place {
    std::byte* weight = nullptr;
    std::array<std::byte*, 3> state{};  // as state_names() has them
    std::int64_t first = 0;
  };

  // Parameters are float32 or float64.
  Updates(OptimizerSpec spec, std::vector<std::string> names,
          const std::vector<at::ScalarType>& types);
  void put(int param, const Place& place) { places_[index(param)] = place; }

  // Updates elements [begin, end) of a parameter; `gradient` points to element `begin`, in the
  // parameter's type. Once a step for each element; several threads or ranks at once for different
  // elements.
  void update(int param, std::int64_t begin, std::int64_t end, const void* gradient) const;
  // The step is over: counts it for the parameters that had a gradient.
  void stepped(const std::vector<bool>& used);

  // From now on gradients come with SGD's momentum in them. Gives that momentum; nothing changes
  // where it is none: another rule, one that dampens, or parameter groups with rules of their own.
  compress::Momentum hand_over_momentum();
  // The updates of this step are still to come: they follow the rule as it is now, until stepped().
  void hold() { held_ = spec_.rule; }
  bool held() const { return held_.has_value(); }

  OptimizerSpec& spec() { return spec_; }
  const OptimizerSpec& spec() const { return spec_; }
  // What the rule keeps for each element: "exp_avg" and the like.
  const std::vector<std::string>& arrays() const { return arrays_; }
  std::int64_t& steps(int param) { return steps_[index(param)]; }
  // This rank's state of a parameter, from element `first` on, in place.
  at::Tensor state(int param, std::size_t array, at::IntArrayRef sizes) const;

 private:
  template <class Number>
  void update_as(const UpdateRule& rule, int param, std::int64_t begin, std::int64_t end,
                 const void* gradient) const;
  void update_with_velocity(const UpdateRule& rule, const optim::FlatStep<float>& at) const;

  OptimizerSpec spec_;
  const ParamRules rules_;
  const std::vector<std::string> arrays_;
  const std::vector<at::ScalarType> types_;  // by parameter
  std::vector<Place> places_;
  std::vector<std::int64_t> steps_;  // done
  std::optional<UpdateRule> held_;
  bool velocity_comes_ = false;  // in gradients
};

}  // namespace weft::parallel::internal
