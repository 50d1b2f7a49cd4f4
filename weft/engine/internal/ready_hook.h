// Tells when backward has made a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace weft::parallel {

// From now on `tell` is called each time a gradient has been added to parameter.grad(), after the
// user's own hook, if there is one.
void add_ready_hook(const at::Tensor& parameter, std::function<void()> tell);

}  // namespace weft::parallel
