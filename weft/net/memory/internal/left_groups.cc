#include "weft/net/memory/internal/left_groups.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "weft/net/memory/host.h"

namespace weft::net {
namespace internal {
namespace {

struct Groups {
  std::mutex mutex;
  std::vector<LeftGroup> groups;
};

// Never destroyed: hosts may end after static objects.
Groups& left() {
  static auto* const groups = new Groups;
  return *groups;
}

bool free_if_unused(const LeftGroup& group) {
  for (std::size_t peer = 0; peer < group.links.size(); ++peer)
    if (!group.has_ended(group.links[peer], static_cast<int>(peer))) return false;
  for (void* block : group.blocks) group.heap->deallocate(block);
  for (const Link& link : group.links)
    if (link.fd >= 0) close(link.fd);
  return true;
}

}  // namespace

void retire(LeftGroup group) {
  const std::lock_guard lock(left().mutex);
  left().groups.push_back(std::move(group));
}

}  // namespace internal

void release_left_groups() {
  const std::lock_guard lock(internal::left().mutex);
  std::erase_if(internal::left().groups, internal::free_if_unused);
}

}  // namespace weft::net
