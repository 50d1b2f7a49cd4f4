// Reports when backward has computed a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace weft::parallel {

// Calls `tell` each time a gradient has been added to parameter.grad(), after the user's own hook,
// if any.
void add_ready_hook(const at::Tensor& parameter, std::function<void()> tell);

}  // namespace weft::parallel
