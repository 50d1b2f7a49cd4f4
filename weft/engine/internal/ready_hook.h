// Reports when backward has computed a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace weft::engine {

// Calls `tell` each time a gradient has been added to parameter.grad(), after the user's own hook,
// if any.
void add_ready_hook(const at::Tensor& parameter, std::function<void()> tell);

// Calls `tell` before backward() adds to parameter.grad(), while `hooked` lives. Call it again
// before a forward pass, since torch::load() takes the hook away.
void ensure_before_hook(std::shared_ptr<void>& hooked, const at::Tensor& parameter,
                        const std::function<void()>& tell);

}  // namespace weft::engine
