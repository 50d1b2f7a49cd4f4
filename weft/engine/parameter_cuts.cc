#include "weft/engine/parameter_cuts.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "weft/base/error.h"
#include "weft/engine/internal/overlaps.h"

namespace weft::engine {
namespace {

// Before the first one loses its memory.
void check_memory(const torch::nn::Module& module) {
  std::vector<internal::Param> params;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& item : module.named_parameters(true)) {
    if (known.insert(item.value().unsafeGetTensorImpl()).second)
      params.push_back({item.key(), item.value(), {}});
  }
  internal::check_apart(params);
}

void let_memory_go(const at::Tensor& parameter) {
  c10::StorageImpl* const storage = parameter.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  storage->set_nbytes(0);
}

}  // namespace

ParameterCuts::ParameterCuts(Group group) : group_(std::move(group)) {}

void ParameterCuts::cut(torch::nn::Module& module,
                        const std::function<bool(const at::Tensor& parameter)>& is_ignored) {
  const at::NoGradGuard no_grad;
  check_memory(module);
  for (const at::Tensor& parameter : module.parameters(true)) {
    if (has(parameter) || (is_ignored && is_ignored(parameter))) continue;
    WEFT_REQUIRE(parameter.layout() == at::kStrided && parameter.device().is_cpu(),
                 "sharded: a parameter is not a dense CPU tensor");
    // A part of a larger tensor leaves the rest of its memory to the other parts.
    if (parameter.storage().nbytes() > parameter.nbytes())
      parameter.set_data(parameter.detach().clone());
    at::Tensor flat = parameter.detach().reshape({-1});
    group_.broadcast(flat);
    const std::int64_t part = (flat.numel() + group_.size() - 1) / group_.size(),
                       begin = std::min(flat.numel(), part * group_.rank());
    const std::int64_t count = std::min(part, flat.numel() - begin);
    at::Tensor mine = at::zeros({part}, flat.options());
    mine.narrow(0, 0, count).copy_(flat.narrow(0, begin, count));
    parts_.emplace(parameter.unsafeGetTensorImpl(), std::move(mine));
    flat = at::Tensor();
    let_memory_go(parameter);
  }
}

bool ParameterCuts::has(const at::Tensor& parameter) const {
  return parts_.contains(parameter.unsafeGetTensorImpl());
}

void ParameterCuts::take(const at::Tensor& parameter, at::Tensor into) {
  const at::NoGradGuard no_grad;
  const auto found = parts_.find(parameter.unsafeGetTensorImpl());
  WEFT_REQUIRE(found != parts_.end(), "sharded: the parameter was not cut");
  at::Tensor all = at::empty({found->second.numel() * group_.size()}, found->second.options());
  group_.all_gather(all, found->second);
  parts_.erase(found);
  into.copy_(all.narrow(0, 0, into.numel()));
}

}  // namespace weft::engine
