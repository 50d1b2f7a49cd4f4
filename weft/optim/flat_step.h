// Arguments of an optimizer step over flat memory.
#pragma once

#include <array>
#include <cstdint>

namespace weft::optim {

// One step over `count` elements. `state` has the arrays of state_names(), the rest null. `step`
// counts from 1.
template <class Number>
struct FlatStep {
  Number* weight = nullptr;
  const Number* gradient = nullptr;
  std::array<Number*, 3> state{};
  std::int64_t count = 0;
  std::int64_t step = 1;
};

}  // namespace weft::optim
