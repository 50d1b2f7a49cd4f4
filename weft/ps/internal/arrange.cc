#include "weft/ps/internal/arrange.h"

#include <algorithm>

namespace weft::ps::internal {
namespace {

// An earlier incarnation of the replica's server has a place in the view.
bool has_ancestor(const Replica& replica, const View& view) {
  const auto is_ancestor = [&](const Member& member) {
    return member.server == replica.me().server && !(member == replica.me());
  };
  return std::any_of(view.members.begin(), view.members.end(), is_ancestor) ||
         (view.joining && is_ancestor(*view.joining));
}

}  // namespace

bool is_lost(const Replica& replica, const View& view) {
  return has_ancestor(replica, view) && !without(view, replica.me().server);
}

std::optional<View> next_view(const Replica& replica, const View& view, const Place& place) {
  if (view.number == 0) {
    if (!place.founds) return std::nullopt;
    return View{1, {replica.me()}, std::nullopt};
  }
  if (has_ancestor(replica, view)) return without(view, replica.me().server);
  if (!view.has(replica.me())) {
    if (view.joining || view.members.size() >= kCopies) return std::nullopt;
    View next = view;
    ++next.number;
    next.joining = replica.me();
    return next;
  }
  if (replica.view().number != view.number) return std::nullopt;
  std::optional<View> next;
  if (place.previous_is_silent) next = without(view, replica.previous()->server);
  if (place.next_is_silent) next = without(view, replica.next()->server);
  // A server that only joins has no state to go on with.
  const bool is_member = view.joining != replica.me();
  if (next && is_member) return next;
  return replica.promotion();
}

}  // namespace weft::ps::internal
