// Election of a leader. A member first asks whether it could win (pre-vote), so that one that was
// cut off does not disturb the others when it returns.
#include "weft/store/internal/raft.h"

namespace weft::store::internal {

void Raft::wait_again() {
  const auto election = options_.timing.election;
  heard_ = now_;
  patience_ =
      election +
      Time(static_cast<Time::rep>(random_.below(static_cast<std::uint64_t>(election.count()))));
}

bool Raft::heard_leader() const {
  return leads() || (leader_ != 0 && now_ - heard_ < options_.timing.election);
}

// True if the candidate's log is not older than this member's.
bool Raft::is_up_to_date(const Message& m) const {
  return m.log_term != log_.last_term() ? m.log_term > log_.last_term() : m.index >= log_.last();
}

void Raft::ask_for_votes(Role role) {
  role_ = role;
  leader_ = 0;
  votes_ = {options_.me};
  wait_again();
  const bool is_real = role == Role::kCandidate;
  if (is_real) save_vote({term() + 1, options_.me});
  const Configuration& configuration = log_.configuration();
  for (const Member& member : configuration.members) {
    if (member.id == options_.me || !configuration.is_voter(member.id)) continue;
    Message m = message(is_real ? Message::Type::kVote : Message::Type::kPreVote, member.id);
    m.term = is_real ? term() : term() + 1;
    m.index = log_.last();
    m.log_term = log_.last_term();
    send(std::move(m));
  }
  if (!is_quorum(configuration, [&](MemberId id) { return id == options_.me; })) return;
  if (is_real) {
    lead();
  } else {
    ask_for_votes(Role::kCandidate);
  }
}

void Raft::on_vote_request(const Message& m) {
  const bool is_real = m.type == Message::Type::kVote;
  bool granted = false;
  if (is_real) {
    if (m.term > term()) follow(m.term, 0);
    const bool is_free =
        vote_.candidate == 0 || vote_.candidate == m.from || options_.flaw == Flaw::kVotesTwice;
    granted = m.term == term() && is_free && is_up_to_date(m);
    if (granted) {
      save_vote({term(), m.from});
      wait_again();
    }
  } else {
    granted = m.term > term() && is_up_to_date(m) && !heard_leader();
  }
  Message reply =
      message(is_real ? Message::Type::kVoteReply : Message::Type::kPreVoteReply, m.from);
  reply.accepted = granted;
  if (granted) reply.term = m.term;
  send(std::move(reply));
}

void Raft::on_vote_reply(const Message& m) {
  const bool is_real = m.type == Message::Type::kVoteReply;
  if (role_ != (is_real ? Role::kCandidate : Role::kPreCandidate) || !m.accepted ||
      m.term != (is_real ? term() : term() + 1))
    return;
  votes_.insert(m.from);
  if (!is_quorum(log_.configuration(), [&](MemberId id) { return votes_.contains(id); })) return;
  if (is_real) {
    lead();
  } else {
    ask_for_votes(Role::kCandidate);
  }
}

void Raft::lead() {
  role_ = Role::kLeader;
  leader_ = options_.me;
  checked_ = now_;
  quorum_round_ = 0;
  peers_.clear();
  reads_.clear();
  follow_configuration();
  // Entries of earlier terms count as committed only with one of this term (section 5.4.2).
  append(LogEntry::Kind::kNothing, "");
  term_start_ = log_.last();
}

// A leader that hears no quorum steps down, since another one may lead by now.
void Raft::check_quorum() {
  if (now_ - checked_ < options_.timing.election) return;
  checked_ = now_;
  if (!is_quorum(log_.configuration(),
                 [&](MemberId id) { return hears(id, options_.timing.election); }))
    follow(term(), 0);
}

}  // namespace weft::store::internal
