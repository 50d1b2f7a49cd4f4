// How this node becomes a member of the store, and what a leader does about the others.
//
//   newcomer ── kJoin, to all connected nodes, in each heartbeat ─► leader: appends a configuration
//      │                                                        with a new member without a vote
//      │ ◄── kJoinReply to a later kJoin, once this is committed: accepted, with the member's id
//      ▼
//   member   begins with an empty log; the leader sends it a snapshot and entries
//      ▼
//   voter    when the member lacks few entries, the leader changes the voters
//
// If no store exists, node 0 founds one when enough other nodes ask for one, and they join it.
//
// A process that has lost its memory has forgotten its votes. Under its old id it could vote a
// second time in a term. So it joins under a new incarnation and gets a new id, and its old member
// leaves. The same holds for a member that was removed while it was cut off (start_over()).
//
// A leader changes one thing at a time: change() is refused until the last one is committed.
#include <algorithm>

#include "weft/store/internal/membership.h"
#include "weft/store/internal/node.h"

namespace weft::store::internal {
namespace {

// A member without a leader for this long asks whether it was removed.
constexpr Time kAskAfter = std::chrono::seconds(1);
// Entries that a member may lack and become a voter.
constexpr Index kCloseBehind = 64;

}  // namespace

void Node::start_raft(Vote vote, Log log) {
  raft_.emplace(RaftOptions{identity_.me, identity_.cluster, random_.next_u64(), options_.timing,
                            options_.flaw},
                vote, std::move(log));
  raft_->advance(clock_.now());
  newcomer_.joined();
  state_.take_over(raft_->log().snapshot());
  const Configuration& configuration = raft_->log().configuration();
  const auto is_me = [&](MemberId id) { return id == identity_.me; };
  // Nobody else is needed, so there is no reason to wait for an election timeout.
  if (!configuration.voters.empty() && is_quorum(configuration, is_me)) raft_->campaign();
}

// Becomes a newcomer: with an empty memory, under a new incarnation.
void Node::start_over() {
  identity_ = {0, 0, random_.next_u64() | 1, 0};
  raft_.reset();
  state_ = AppliedState(options_.flaw != Flaw::kForgetsSessions);
  messages_.forget_members();
  requests_.start_over();
  write_everything();
  if (newcomer_.should_found(clock_.now())) found();
}

void Node::tend_members() {
  if (!raft_) {
    messages_.send_to_all(join_request());
    if (newcomer_.should_found(clock_.now())) found();
    return;
  }
  if (raft_->without_leader() >= kAskAfter && clock_.now() - asked_ >= kAskAfter)
    ask_whether_member();
  if (!raft_->is_settled()) return;
  const Configuration& configuration = raft_->log().configuration();
  const auto view = [&](MemberId id) {
    return MemberView{!raft_->hears(id, options_.lost_after),
                      raft_->hears(id, options_.timing.election) && raft_->lag(id) <= kCloseBehind};
  };
  const auto next = next_change(configuration, view);
  if (!next) return;
  const std::vector<Member> before = configuration.members;  // change() replaces the configuration
  if (!raft_->change(*next)) return;
  for (const Member& member : before) {
    if (next->find(member.id) == nullptr)
      output_.notes.push_back("node " + std::to_string(member.node) +
                              " is silent and leaves the store");
  }
}

// A node that was cut off may have been removed, and all members that it knows replaced. The leader
// answers any message of a node that is no member. This one is a read that nobody awaits.
void Node::ask_whether_member() {
  asked_ = clock_.now();
  messages_.send_to_all(from_me(Message::Type::kRead));
}

Message Node::from_me(Message::Type type) const {
  Message message;
  message.type = type;
  message.cluster = identity_.cluster;
  message.from = identity_.me;
  return message;
}

// Asks another node to admit this one.
Message Node::join_request() const {
  Message message;
  message.type = Message::Type::kJoin;
  message.members = {{0, options_.node, identity_.incarnation, options_.address}};
  return message;
}

// Makes a new store with this node as its only member; the other founders join it.
void Node::found() {
  identity_.cluster = random_.next_u64() | 1;
  identity_.me = 1;
  identity_.added = 1;
  Configuration configuration;
  configuration.members = {{1, options_.node, identity_.incarnation, options_.address}};
  configuration.voters = {1};
  configuration.next_id = 2;
  start_raft({1, 0}, Log({1, 1, configuration, state().snapshot()}));
  write_everything();
  raft_->take_unsaved();
}

void Node::on_join(std::uint32_t from, const Message& m) {
  if (m.members.size() != 1 || m.members[0].node != from) return;
  const Member& newcomer = m.members[0];
  if (!raft_) {
    newcomer_.heard(from, clock_.now());
    return;
  }
  const Configuration& configuration = raft_->log().configuration();
  Message reply;
  reply.type = Message::Type::kJoinReply;
  reply.cluster = identity_.cluster;
  reply.members = configuration.members;
  if (raft_->is_settled() && raft_->configuration_is_committed()) {
    reply.term = raft_->term();
    reply.index = raft_->log().configuration_index();
    const auto known = std::find_if(
        configuration.members.begin(), configuration.members.end(),
        [&](const Member& member) { return member.incarnation == newcomer.incarnation; });
    const Member* const old = configuration.find_node(from);
    const MemberId replaced = old == nullptr ? 0 : old->id;  // change() replaces the configuration
    if (known != configuration.members.end()) {
      reply.accepted = true;
      reply.to = known->id;
    } else if (old != nullptr && raft_->hears(replaced, options_.timing.election)) {
      // Two processes of one number: the one that is alive stays.
      reply.data = "taken";
    } else if (raft_->change(with_newcomer(configuration, newcomer))) {
      messages_.forget(replaced);
    }
  }
  messages_.send(from, std::move(reply));
}

void Node::on_join_reply(const Message& m) {
  if (raft_) return;
  newcomer_.learn(m);
  if (auto complaint = newcomer_.complaint(m)) output_.notes.push_back(std::move(*complaint));
  if (!m.accepted || m.cluster == 0) return;
  const auto mine = std::find_if(m.members.begin(), m.members.end(), [&](const Member& member) {
    return member.id == m.to && member.incarnation == identity_.incarnation;
  });
  if (mine == m.members.end()) return;
  identity_.cluster = m.cluster;
  identity_.me = m.to;
  identity_.added = m.index;
  // It is safe to know of no vote in this term: this id did not exist before.
  start_raft({m.term, 0}, Log(Snapshot{}));
  write_everything();
  raft_->take_unsaved();
}

// A leader tells a sender that is no member any more that it was removed.
bool Node::turns_away(std::uint32_t from, const Message& m) {
  const Configuration& configuration = raft_->log().configuration();
  if (!raft_->is_settled() || !raft_->configuration_is_committed() || configuration.is_joint() ||
      configuration.find(m.from) != nullptr)
    return false;
  Message removed = from_me(Message::Type::kRemoved);
  removed.to = m.from;
  removed.term = raft_->term();
  removed.index = raft_->log().configuration_index();
  messages_.send(from, std::move(removed));
  return true;
}

Newcomer::Addresses Node::peers() const {
  Newcomer::Addresses peers;
  if (!raft_ || raft_->log().configuration().members.empty()) {
    peers = newcomer_.addresses();
  } else {
    const Configuration& configuration = raft_->log().configuration();
    const bool i_vote = configuration.is_voter(identity_.me);
    for (const Member& member : configuration.members) {
      if (i_vote || configuration.is_voter(member.id)) peers[member.node] = member.address;
    }
  }
  peers.erase(options_.node);
  return peers;
}

}  // namespace weft::store::internal
