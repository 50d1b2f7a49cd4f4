#include "weft/store/internal/raft.h"

#include <algorithm>
#include <limits>

namespace weft::store::internal {

Raft::Raft(const RaftOptions& options, Vote vote, Log log)
    : options_(options), random_(options.seed), vote_(vote), log_(std::move(log)) {
  commit_ = log_.snapshot().index;
  wait_again();
}

void Raft::advance(Time now) {
  now_ = now;
  if (leads()) {
    led_at_ = now_;
    check_quorum();
    if (!leads()) return;
    for (auto& [id, peer] : peers_) {
      if (now_ - peer.sent >= options_.timing.heartbeat) send_entries(id, peer);
    }
  } else if (log_.configuration().is_voter(options_.me) && now_ - heard_ >= patience_) {
    ask_for_votes(Role::kPreCandidate);
  }
}

Time Raft::next() const {
  if (!leads())
    return log_.configuration().is_voter(options_.me) ? heard_ + patience_ : Time::max();
  Time first = checked_ + options_.timing.election;
  for (const auto& [id, peer] : peers_)
    first = std::min(first, peer.sent + options_.timing.heartbeat);
  return first;
}

void Raft::receive(const Message& m) {
  using Type = Message::Type;
  const bool from_leader = m.type == Type::kAppend || m.type == Type::kSnapshot;
  const bool asks = m.type == Type::kPreVote || m.type == Type::kVote || m.type == Type::kRead ||
                    (m.type == Type::kPreVoteReply && m.accepted);
  if (m.term > term() && !asks) follow(m.term, from_leader ? m.from : 0);
  if (from_leader && m.term == term()) {
    WEFT_CHECK(!leads(), "members " + std::to_string(options_.me) + " and " +
                             std::to_string(m.from) + " lead the same term");
    follow(m.term, m.from);
    wait_again();
    led_at_ = now_;
  }
  switch (m.type) {
    case Type::kAppend: return on_append(m);
    case Type::kAppendReply: return on_append_reply(m);
    case Type::kSnapshot: return on_snapshot(m);
    case Type::kSnapshotReply: return on_snapshot_reply(m);
    case Type::kPreVote:
    case Type::kVote: return on_vote_request(m);
    case Type::kPreVoteReply:
    case Type::kVoteReply: return on_vote_reply(m);
    case Type::kRead:
      if (leads()) add_read(m.from, m.round);
      return;
    case Type::kReadReply: ready_.push_back({m.round, m.index}); return;
    default: return;  // of Node
  }
}

void Raft::disconnected(MemberId member) {
  if (const auto peer = peers_.find(member); leads() && peer != peers_.end())
    peer->second.heard = now_ - options_.timing.election;
  if (leads() || member != leader_) return;
  leader_ = 0;
  wait_again();
  // Sooner than after a silence, and at different times, so that members do not compete.
  patience_ = Time(static_cast<Time::rep>(
      random_.below(static_cast<std::uint64_t>(options_.timing.election.count() / 2))));
}

void Raft::campaign() { ask_for_votes(Role::kCandidate); }

bool Raft::propose(std::string command) {
  if (!leads()) return false;
  append(LogEntry::Kind::kCommand, std::move(command));
  return true;
}

bool Raft::change(const Configuration& next) {
  if (!is_settled() || log_.configuration().is_joint() || log_.configuration_index() > commit_)
    return false;
  ByteWriter out;
  put(out,
      options_.flaw == Flaw::kOneStepChanges ? next : begin_change(log_.configuration(), next));
  append(LogEntry::Kind::kConfiguration, out.take());
  follow_configuration();
  return true;
}

void Raft::compact(Snapshot snapshot) {
  constexpr Index kKeep = 1024;  // for members that are a little behind
  log_.compact(std::move(snapshot), kKeep);
}

// Tells the peers what is new, once for all calls since the last time.
void Raft::flush() {
  if (!leads()) return;
  advance_commit();
  confirm_reads();
  if (!dirty_) return;
  dirty_ = false;
  for (auto& [id, peer] : peers_) {
    const bool news =
        peer.next <= log_.last() || peer.told < commit_ || peer.told_round < quorum_round_;
    const bool busy = peer.transfer || (peer.probing && peer.waiting);
    if (news && !busy) send_entries(id, peer);
  }
}

bool Raft::hears(MemberId member, Time within) const {
  const auto peer = peers_.find(member);
  return member == options_.me || (peer != peers_.end() && now_ - peer->second.heard < within);
}

Index Raft::lag(MemberId member) const {
  if (member == options_.me) return 0;
  const auto peer = peers_.find(member);
  const bool is_known = peer != peers_.end() && peer->second.match > 0;
  return is_known ? log_.last() - peer->second.match : std::numeric_limits<Index>::max();
}

void Raft::send(Message message) { messages_.push_back(std::move(message)); }

Message Raft::message(Message::Type type, MemberId to) const {
  Message made;
  made.type = type;
  made.cluster = options_.cluster;
  made.from = options_.me;
  made.to = to;
  made.term = term();
  return made;
}

void Raft::follow(Term term, MemberId leader) {
  if (term > vote_.term) save_vote({term, 0});
  if (role_ != Role::kFollower) wait_again();
  role_ = Role::kFollower;
  leader_ = leader;
  peers_.clear();
  reads_.clear();
}

void Raft::save_vote(Vote vote) {
  unsaved_.vote = unsaved_.vote || vote != vote_;
  vote_ = vote;
}

void Raft::append(LogEntry::Kind kind, std::string data) {
  log_.append({term(), kind, std::move(data)});
  unsaved_.from = unsaved_.from == 0 ? log_.last() : std::min(unsaved_.from, log_.last());
  dirty_ = true;
}

}  // namespace weft::store::internal
