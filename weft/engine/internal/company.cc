#include "weft/engine/internal/company.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace weft::engine::internal {
namespace {

// All of this process. Ranks may be threads, whose groups differ.
struct Companies {
  std::mutex mutex;  // guards the others
  std::vector<const Company*> all;
  std::int64_t changes = 0;  // models that came or went

  static Companies& get() {
    static Companies& one = *new Companies;  // models may outlive static variables
    return one;
  }
};

}  // namespace

Company::Company(const void* group, std::int64_t number, std::vector<at::Tensor> trained)
    : group_(group), number_(number), trained_(std::move(trained)) {
  Companies& registry = Companies::get();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(this);
  ++registry.changes;
}

Company::~Company() {
  Companies& registry = Companies::get();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.all, this);
  ++registry.changes;
}

void Company::note() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (std::exchange(task_, task) == task) return;
  seen_.insert(number_);
  Companies& registry = Companies::get();
  const std::lock_guard lock(registry.mutex);
  for (const Company* const other : registry.all) {
    if (other != this && other->group_ == group_ && other->is_reached())
      seen_.insert(other->number_);
  }
}

// The current backward() computes the gradient of a parameter.
bool Company::is_reached() const {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return false;
  return std::any_of(trained_.begin(), trained_.end(), [&](const at::Tensor& parameter) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
    return static_cast<bool>(node) && nodes->contains(node.get());
  });
}

int Company::shared() {
  Companies& registry = Companies::get();
  const std::lock_guard lock(registry.mutex);
  if (std::exchange(looked_at_, registry.changes) == registry.changes) return shared_;
  std::unordered_set<const c10::TensorImpl*> theirs;
  for (const Company* const other : registry.all) {
    if (other == this) continue;
    for (const at::Tensor& parameter : other->trained_)
      theirs.insert(parameter.unsafeGetTensorImpl());
  }
  const auto found =
      std::find_if(trained_.begin(), trained_.end(), [&](const at::Tensor& parameter) {
        return theirs.contains(parameter.unsafeGetTensorImpl());
      });
  shared_ = found == trained_.end() ? -1 : static_cast<int>(found - trained_.begin());
  return shared_;
}

void Company::forget() {
  seen_.clear();
  task_ = -1;
}

// Exact in float64.
std::uint64_t Company::value() const {
  if (seen_.empty()) return 0;
  std::uint64_t hash = 14695981039346656037U;
  for (const std::int64_t number : seen_)
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 1099511628211U;
  return 1 + (hash >> 12);
}

std::optional<std::pair<int, int>> first_apart(const std::vector<std::uint64_t>& companies) {
  const auto counts = [](std::uint64_t company) { return company != 0; };
  const auto first = std::find_if(companies.begin(), companies.end(), counts);
  const auto other = std::find_if(first, companies.end(), [&](std::uint64_t company) {
    return counts(company) && company != *first;
  });
  if (other == companies.end()) return std::nullopt;
  return std::pair(static_cast<int>(first - companies.begin()),
                   static_cast<int>(other - companies.begin()));
}

std::string apart_text(const std::optional<std::pair<int, int>>& ranks,
                       const std::string& parameter) {
  const std::string where = ranks ? "on rank " + std::to_string(ranks->first) + " than on rank " +
                                        std::to_string(ranks->second)
                                  : "on some ranks than on others";
  return "backward() has reached other models together with that of '" + parameter + "' " + where +
         ", so their gradients would be weighted by other samples; let the loss of each rank use "
         "the same models, with zero times the output of one that it leaves out";
}

}  // namespace weft::engine::internal
