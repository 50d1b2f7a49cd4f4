#include "weft/store/internal/membership.h"

#include <algorithm>

namespace weft::store::internal {

std::optional<Configuration> next_change(const Configuration& now,
                                         const std::function<MemberView(MemberId)>& view) {
  Configuration next = now;
  std::erase_if(next.voters, [&](MemberId id) { return view(id).is_lost; });
  std::erase_if(next.members, [&](const Member& member) { return view(member.id).is_lost; });
  for (const Member& member : next.members) {
    if (next.voters.size() >= kMaxStoreVoters) break;
    if (!next.is_voter(member.id) && view(member.id).is_caught_up) next.voters.push_back(member.id);
  }
  std::sort(next.voters.begin(), next.voters.end());
  if (next == now || next.voters.empty()) return std::nullopt;
  return next;
}

Configuration with_newcomer(Configuration now, Member newcomer) {
  if (const Member* const old = now.find_node(newcomer.node)) {
    const MemberId id = old->id;
    std::erase(now.voters, id);
    std::erase_if(now.members, [&](const Member& member) { return member.id == id; });
  }
  newcomer.id = now.next_id++;
  now.members.push_back(std::move(newcomer));
  return now;
}

}  // namespace weft::store::internal
