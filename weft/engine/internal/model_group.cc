#include "weft/engine/internal/model_group.h"

#include <mutex>
#include <utility>
#include <vector>

#include "weft/comm/texts.h"
#include "weft/engine/internal/engine.h"

namespace weft::engine::internal {
namespace {

// All of this process. Ranks may be threads, whose groups differ.
struct ModelGroups {
  std::mutex mutex;                                  // guards `all`
  std::vector<std::weak_ptr<const ModelGroup>> all;  // in the order in which they were made

  static ModelGroups& get() {
    static ModelGroups& one = *new ModelGroups;  // models may outlive static variables
    return one;
  }
};

// The newest of this rank; null if there is none.
std::shared_ptr<const ModelGroup> newest_of(const Group& group) {
  ModelGroups& registry = ModelGroups::get();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.all, [](const auto& one) { return one.expired(); });
  std::shared_ptr<const ModelGroup> newest;
  for (const auto& weak : registry.all) {
    auto one = weak.lock();
    if (one && &one->program.backend() == &group.backend()) newest = std::move(one);
  }
  return newest;
}

bool works(const Group& group) {
  try {
    group.barrier();
  } catch (const Error&) {  // whatever has ended the group, a new one takes its place
    return false;
  }
  return true;
}

}  // namespace

// Ranks may keep models for different times, or know of a failure only later. So they agree on
// whether the group is new.
std::shared_ptr<const ModelGroup> ModelGroup::of(const Group& group) {
  if (group.size() == 1) return std::make_shared<const ModelGroup>(ModelGroup{group, group});
  auto newest = newest_of(group);
  if (comm::holds_on_all(group, newest != nullptr) &&
      comm::holds_on_all(group, works(newest->gradients)))
    return newest;
  const Group gradients = group.attach(part_name(group, "gradients"));
  const auto made = std::make_shared<const ModelGroup>(ModelGroup{group, gradients});
  if (&gradients.backend() == &group.backend()) return made;
  ModelGroups& registry = ModelGroups::get();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(made);
  return made;
}

}  // namespace weft::engine::internal
