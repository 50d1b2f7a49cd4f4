#include "weft/parallel/data/internal/weight_guard.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <unordered_map>

namespace weft::parallel::internal {

struct WeightGuard::Watch {
  std::unordered_map<const void*, int> params;
  std::function<void(int)> used;
  std::vector<bool> seen;

  void look(const at::TensorBase& tensor) {
    const auto found = params.find(tensor.unsafeGetTensorImpl());
    if (found == params.end() || seen[static_cast<std::size_t>(found->second)]) return;
    seen[static_cast<std::size_t>(found->second)] = true;
    used(found->second);
  }
};

namespace {

// Observers are plain functions: what they look for stands here. A guard may end on another thread than the observed one.
thread_local std::vector<std::weak_ptr<WeightGuard::Watch>> armed;

void look_all(const at::TensorBase& tensor) {
  for (const auto& weak : armed) {
    if (const auto watch = weak.lock()) watch->look(tensor);
  }
}

std::unique_ptr<at::ObserverContext> before_operation(const at::RecordFunction& operation) {
  const at::DisableRecordFunctionGuard not_what_follows;
  for (const auto& input : operation.inputs()) {
    if (input.isTensor()) {
      look_all(input.toTensor());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) look_all(tensor);
    } else if (input.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : input.toOptionalTensorVector()) {
        if (tensor) look_all(*tensor);
      }
    }
  }
  return nullptr;
}

}  // namespace

WeightGuard::WeightGuard(const std::vector<at::Tensor>& params, std::function<void(int)> used) : watch_(std::make_shared<Watch>()) {
  for (std::size_t i = 0; i < params.size(); ++i) watch_->params.emplace(params[i].unsafeGetTensorImpl(), static_cast<int>(i));
  watch_->used = std::move(used);
}

WeightGuard::~WeightGuard() { disarm(); }

void WeightGuard::arm() {
  if (handle_) return;
  watch_->seen.assign(watch_->params.size(), false);
  armed.push_back(watch_);
  thread_ = std::this_thread::get_id();
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(before_operation).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void WeightGuard::disarm() {
  if (!handle_ || thread_ != std::this_thread::get_id()) return;
  at::removeCallback(*handle_);
  handle_.reset();
  std::erase_if(armed, [&](const auto& weak) { return weak.lock() == watch_ || weak.expired(); });
}

}  // namespace weft::parallel::internal
