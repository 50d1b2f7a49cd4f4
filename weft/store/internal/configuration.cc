#include "weft/store/internal/configuration.h"

#include <algorithm>

namespace weft::store::internal {
namespace {

// A configuration never has more; a longer list on the wire is malformed.
constexpr std::uint32_t kMaxVoters = 64;

bool contains(const std::vector<MemberId>& ids, MemberId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void put_ids(ByteWriter& out, const std::vector<MemberId>& ids) {
  out.put(static_cast<std::uint32_t>(ids.size()));
  for (const MemberId id : ids) out.put(id);
}

std::vector<MemberId> take_ids(ByteReader& in) {
  const auto count = in.take_count(sizeof(MemberId));
  if (count > kMaxVoters) ByteReader::fail();
  std::vector<MemberId> ids(count);
  for (MemberId& id : ids) id = in.take<MemberId>();
  if (!std::is_sorted(ids.begin(), ids.end())) ByteReader::fail();
  return ids;
}

Index agreed_index(const std::vector<MemberId>& voters,
                   const std::function<Index(MemberId)>& match) {
  Index best = 0;
  for (const MemberId candidate : voters) {
    const Index index = match(candidate);
    if (index > best && is_quorum(voters, [&](MemberId id) { return match(id) >= index; }))
      best = index;
  }
  return best;
}

}  // namespace

bool Configuration::is_voter(MemberId id) const {
  return contains(voters, id) || contains(old_voters, id);
}

const Member* Configuration::find(MemberId id) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const Member& member) { return member.id == id; });
  return found == members.end() ? nullptr : &*found;
}

const Member* Configuration::find_node(std::uint32_t node) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const Member& member) { return member.node == node; });
  return found == members.end() ? nullptr : &*found;
}

bool is_quorum(const std::vector<MemberId>& voters, const std::function<bool(MemberId)>& agrees) {
  const auto count =
      2 * static_cast<std::size_t>(std::count_if(voters.begin(), voters.end(), agrees));
  return count > voters.size() ||
         (count == voters.size() && !voters.empty() && agrees(voters.front()));
}

bool is_quorum(const Configuration& configuration, const std::function<bool(MemberId)>& agrees) {
  return is_quorum(configuration.voters, agrees) &&
         (!configuration.is_joint() || is_quorum(configuration.old_voters, agrees));
}

Index agreed_index(const Configuration& configuration,
                   const std::function<Index(MemberId)>& match) {
  const Index index = agreed_index(configuration.voters, match);
  return configuration.is_joint() ? std::min(index, agreed_index(configuration.old_voters, match))
                                  : index;
}

Configuration begin_change(const Configuration& now, Configuration next) {
  if (next.voters == now.voters) return next;
  next.old_voters = now.voters;
  for (const MemberId id : now.voters) {
    if (next.find(id) == nullptr) next.members.push_back(*now.find(id));
  }
  std::sort(next.members.begin(), next.members.end(),
            [](const Member& a, const Member& b) { return a.id < b.id; });
  return next;
}

// A voter that loses its vote also leaves: it is lost, or its node has a new member.
Configuration end_change(Configuration joint) {
  std::erase_if(joint.members, [&](const Member& member) {
    return contains(joint.old_voters, member.id) && !contains(joint.voters, member.id);
  });
  joint.old_voters.clear();
  return joint;
}

void put(ByteWriter& out, const Member& member) {
  out.put(member.id);
  out.put(member.node);
  out.put(member.incarnation);
  out.put_text(member.address);
}

Member take_member(ByteReader& in) {
  Member member;
  member.id = in.take<MemberId>();
  member.node = in.take<std::uint32_t>();
  member.incarnation = in.take<std::uint64_t>();
  member.address = in.take_text();
  return member;
}

void put(ByteWriter& out, const Configuration& configuration) {
  out.put(static_cast<std::uint32_t>(configuration.members.size()));
  for (const Member& member : configuration.members) put(out, member);
  put_ids(out, configuration.voters);
  put_ids(out, configuration.old_voters);
  out.put(configuration.next_id);
}

Configuration take_configuration(ByteReader& in) {
  constexpr std::size_t kMemberBytes = 24;
  Configuration configuration;
  const auto count = in.take_count(kMemberBytes);
  configuration.members.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) configuration.members.push_back(take_member(in));
  configuration.voters = take_ids(in);
  configuration.old_voters = take_ids(in);
  configuration.next_id = in.take<MemberId>();
  for (const MemberId id : configuration.voters) {
    if (configuration.find(id) == nullptr) ByteReader::fail();
  }
  for (const MemberId id : configuration.old_voters) {
    if (configuration.find(id) == nullptr) ByteReader::fail();
  }
  if (configuration.voters.empty()) ByteReader::fail();
  return configuration;
}

}  // namespace weft::store::internal
