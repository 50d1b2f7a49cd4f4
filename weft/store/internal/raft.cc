// Joins the parts of the consensus; raft.h names them and the papers.
//
// A message of a newer term makes this member follow (receive()), but not one that only asks: a
// member that was cut off and comes back must not end the term of a working leader. A real request
// for votes does (on_vote_request()).
//
// flush() does all at once: the commit index moves, new reads take it, reads that a quorum has
// confirmed are answered, and then each follower gets one message with entries, commit index and
// round. So many proposals cost one message for each follower.
//
// A leader that has not heard a quorum for an election's time steps down (advance()). It could not
// commit anything, and its clients must look for another one.
//
// Change of voters, in two entries: the joint configuration, and when that is committed, the new
// voters alone. Each is in force from the moment it is in the log, committed or not. A leader that
// is not in the new one steps down once that is committed.
//
// Owned by the Node: one thread, no locks.
#include "weft/store/internal/raft.h"

#include <algorithm>

namespace weft::store::internal {

using Type = Message::Type;

Raft::Raft(const RaftOptions& options, Vote vote, Log log)
    : options_(options),
      election_(options, vote),
      log_(std::move(log)),
      followers_(options.me, options.timing),
      out_(options.cluster, options.me) {}

void Raft::advance(Time now) {
  now_ = now;
  if (leads()) {
    // Another member may lead by now.
    if (followers_.has_lost_quorum(log_.configuration(), now_)) return follow(term(), 0);
    followers_.heartbeat(log_, now_, out_);
  } else if (log_.configuration().is_voter(options_.me) && now_ >= election_.due()) {
    ask_for_votes(false);
  }
}

Time Raft::next() const {
  if (leads()) return followers_.next();
  return log_.configuration().is_voter(options_.me) ? election_.due() : Time::max();
}

void Raft::receive(const Message& m) {
  const bool from_leader = m.type == Type::kAppend || m.type == Type::kSnapshot;
  const bool asks = m.type == Type::kPreVote || m.type == Type::kVote || m.type == Type::kRead ||
                    (m.type == Type::kPreVoteReply && m.accepted);
  if (m.term > term() && !asks) follow(m.term, from_leader ? m.from : 0);
  if (from_leader && m.term == term()) {
    // Two leaders of one term would mean that a member voted twice.
    WEFT_CHECK(!leads(), "members " + std::to_string(options_.me) + " and " +
                             std::to_string(m.from) + " lead the same term");
    election_.heard_leader(m.term, m.from, now_);
  }
  switch (m.type) {
    case Type::kAppend: return on_append(m);
    case Type::kAppendReply: return followers_.on_append_reply(m, log(), now_);
    case Type::kSnapshot: return on_snapshot(m);
    case Type::kSnapshotReply: return followers_.on_snapshot_reply(m, log(), now_, out_);
    case Type::kPreVote:
    case Type::kVote: return on_vote_request(m);
    case Type::kPreVoteReply:
    case Type::kVoteReply:
      if (election_.count(m)) end_election_if_won();
      return;
    case Type::kRead:
      if (leads()) reads_.add(m.from, m.round);
      return;
    case Type::kReadReply: ready_.push_back({m.round, m.index}); return;
    default: return;  // of Node
  }
}

void Raft::disconnected(MemberId member) {
  followers_.disconnected(member, now_);
  if (!leads() && member == leader()) election_.lost_leader(now_);
}

void Raft::flush() {
  if (!leads()) return;
  advance_commit();
  confirm_reads();
  followers_.tell(log_, now_, out_);
}

// ---- election

void Raft::follow(Term term, MemberId leader) {
  election_.follow(term, leader, now_);
  followers_.end();
  reads_.clear();
}

void Raft::ask_for_votes(bool is_real) {
  election_.stand(is_real, now_);
  const Configuration& configuration = log_.configuration();
  for (const Member& member : configuration.members) {
    if (member.id == options_.me || !configuration.is_voter(member.id)) continue;
    Message& m =
        out_.add(is_real ? Type::kVote : Type::kPreVote, member.id, election_.asked_term());
    // Voters refuse a log that is older than theirs, since it may lack committed entries.
    m.index = log().last();
    m.log_term = log().last_term();
  }
  end_election_if_won();
}

void Raft::end_election_if_won() {
  if (!election_.is_won(log_.configuration())) return;
  if (election_.is_real()) {
    lead();
  } else {
    ask_for_votes(true);
  }
}

void Raft::lead() {
  election_.lead();
  reads_.clear();
  followers_.begin(term(), log(), now_);
  // Entries of earlier terms count as committed only with one of this term (section 5.4.2).
  append(LogEntry::Kind::kNothing, "");
  term_start_ = log().last();
}

void Raft::on_vote_request(const Message& m) {
  const bool is_real = m.type == Type::kVote;
  if (is_real && m.term > term()) follow(m.term, 0);
  const bool granted = election_.grant(m, log_.is_covered_by(m.index, m.log_term), now_);
  out_.add(is_real ? Type::kVoteReply : Type::kPreVoteReply, m.from, granted ? m.term : term())
      .accepted = granted;
}

// ---- replication

void Raft::append(LogEntry::Kind kind, std::string data) {
  log_.append({term(), kind, std::move(data)});
}

void Raft::append(const Configuration& configuration) {
  ByteWriter out;
  put(out, configuration);
  append(LogEntry::Kind::kConfiguration, out.take());
  followers_.update(log(), now_);
}

bool Raft::propose(std::string command) {
  if (!leads()) return false;
  append(LogEntry::Kind::kCommand, std::move(command));
  return true;
}

bool Raft::change(const Configuration& next) {
  if (!is_settled() || log_.configuration().is_joint() || !configuration_is_committed())
    return false;
  append(options_.flaw == Flaw::kOneStepChanges ? next : begin_change(log_.configuration(), next));
  return true;
}

void Raft::on_append(const Message& m) {
  const bool is_current = m.term >= term();  // else: tells an earlier leader of the new term
  const MemberLog::Match match = is_current ? log_.accept(m) : MemberLog::Match{};
  Message& reply = out_.add(Type::kAppendReply, m.from, term());
  // The answer to a heartbeat also confirms the leader for the reads of that round.
  reply.round = is_current ? m.round : 0;
  reply.accepted = match.agrees;
  reply.index = match.index;
}

void Raft::on_snapshot(const Message& m) {
  if (m.term < term() || !IncomingSnapshot::is_allowed(m)) return;
  // Only committed entries are in a snapshot.
  const bool known = log_.includes(m.index, m.log_term);
  if (known) {
    log_.commit_to(m.index);
    incoming_.clear();
  } else {
    incoming_.add(m);
  }
  const std::size_t offset = incoming_.size();
  const bool complete = !known && offset >= m.total;
  if (complete) log_.install(incoming_.take());
  Message& reply = out_.add(Type::kSnapshotReply, m.from, term());
  reply.accepted = known || complete;
  reply.index = known ? commit() : m.index;
  reply.offset = offset;
}

// Commits what a quorum has, if its last entry is of this term (section 5.4.2).
void Raft::advance_commit() {
  const Index index =
      options_.flaw == Flaw::kCommitsAlone ? log().last() : followers_.agreed(log());
  if (index <= commit() || log().term_at(index) != term()) return;
  log_.commit_to(index);
  finish_change();
}

// Completes a change of the voters when its first step is committed.
void Raft::finish_change() {
  const Configuration& configuration = log_.configuration();
  if (!configuration_is_committed()) return;
  if (configuration.find(options_.me) == nullptr) return follow(term(), 0);
  if (!configuration.is_joint() || !is_settled()) return;
  // A single voter is a quorum by itself, so the second step may be committed at once.
  append(end_change(configuration));
  advance_commit();
}

// ---- reads

bool Raft::read(std::uint64_t round) {
  if (leads()) {
    reads_.add(options_.me, round);
    return true;
  }
  if (leader() == 0) return false;
  out_.add(Type::kRead, leader(), term()).round = round;
  return true;
}

// Begins the reads that have come, and ends those that a quorum has confirmed. A leader does not
// know the commit index before an entry of its own term is committed; reads wait for it.
void Raft::confirm_reads() {
  if (!is_settled()) return;
  if (reads_.has_new()) reads_.begin(followers_.begin_round(), commit());
  const std::uint64_t confirmed = options_.flaw == Flaw::kReadsWithoutQuorum
                                      ? followers_.round()
                                      : followers_.confirmed_round(log_.configuration());
  for (const LeaderReads::Read& read : reads_.take(confirmed)) {
    if (read.from == options_.me) {
      ready_.push_back({read.number, read.index});
      continue;
    }
    Message& reply = out_.add(Type::kReadReply, read.from, term());
    reply.round = read.number;
    reply.index = read.index;
  }
}

}  // namespace weft::store::internal
