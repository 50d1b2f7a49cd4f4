#include "weft/store/internal/newcomer.h"

#include <utility>

namespace weft::store::internal {
namespace {

// A newcomer that was not heard for this long is not counted among the founders.
constexpr Time kSeekerStays = std::chrono::seconds(2);

}  // namespace

bool Newcomer::should_found(Time now) {
  std::erase_if(seekers_, [&](const auto& seeker) { return now - seeker.second > kSeekerStays; });
  return node_ == 0 && seekers_.size() + 1 >= founders_ && !was_member_;
}

void Newcomer::joined() {
  seekers_.clear();
  was_member_ = true;
}

void Newcomer::learn(const Message& reply) {
  for (const Member& member : reply.members) addresses_[member.node] = member.address;
}

std::optional<std::string> Newcomer::complaint(const Message& reply) {
  if (reply.data != "taken" || std::exchange(complained_, true)) return std::nullopt;
  return "another process of node " + std::to_string(node_) +
         " is a member of the store; this one waits until it has ended. Give every node its own "
         "number";
}

}  // namespace weft::store::internal
