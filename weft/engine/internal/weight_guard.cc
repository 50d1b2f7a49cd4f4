#include "weft/engine/internal/weight_guard.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <unordered_map>

namespace weft::engine::internal {

struct WeightGuard::Watch {
  std::unordered_map<const void*, int> params;
  std::function<void(int)> used;
  std::vector<bool> seen;
  bool looks = false;

  void look(const at::TensorBase& tensor) {
    if (!looks) return;
    const auto found = params.find(tensor.unsafeGetTensorImpl());
    if (found == params.end() || seen[static_cast<std::size_t>(found->second)]) return;
    seen[static_cast<std::size_t>(found->second)] = true;
    used(found->second);
  }
};

namespace {

// Observers are plain functions, so their data is global. A guard may be destroyed on another
// thread than the observed one.
thread_local std::vector<std::weak_ptr<WeightGuard::Watch>> observed;
thread_local bool within = false;  // operations of used() itself are not observed

void look_all(const at::TensorBase& tensor) {
  for (const auto& weak : observed) {
    if (const auto watch = weak.lock()) watch->look(tensor);
  }
}

std::unique_ptr<at::ObserverContext> before_operation(const at::RecordFunction& operation) {
  if (within) return nullptr;
  struct Inside {
    Inside() { within = true; }
    ~Inside() { within = false; }
  } const inside;
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

WeightGuard::WeightGuard(const std::vector<at::Tensor>& params, std::function<void(int)> used)
    : watch_(std::make_shared<Watch>()) {
  for (std::size_t i = 0; i < params.size(); ++i)
    watch_->params.emplace(params[i].unsafeGetTensorImpl(), static_cast<int>(i));
  watch_->used = std::move(used);
}

WeightGuard::~WeightGuard() {
  disarm();
  if (!handle_ || thread_ != std::this_thread::get_id()) return;
  at::removeCallback(*handle_);
  std::erase_if(observed,
                [&](const auto& weak) { return weak.lock() == watch_ || weak.expired(); });
}

void WeightGuard::arm() {
  watch_->seen.assign(watch_->params.size(), false);
  watch_->looks = true;
  if (handle_ && thread_ == std::this_thread::get_id()) return;
  observed.push_back(watch_);
  thread_ = std::this_thread::get_id();
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(before_operation)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

// The observer stays registered, since backward() restores the thread's observers at its end. It is
// only disarmed during backward().
void WeightGuard::disarm() { watch_->looks = false; }

}  // namespace weft::engine::internal
