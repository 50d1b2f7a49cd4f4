// Who leads, as one member knows it: the term, the member's vote, the votes that it has got, and
// the time after which it asks for votes itself.
//
// A member first asks whether it could win (pre-vote), so that one that was cut off does not
// disturb the others when it returns. Invariant: the term never goes back, and a member votes once
// a term; take_unsaved() tells of each change of the term or the vote.
#pragma once

#include <set>
#include <utility>

#include "weft/base/random.h"
#include "weft/store/internal/message.h"
#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

// What a member must never forget, besides its log.
struct Vote {
  Term term = 0;
  MemberId candidate = 0;
  bool operator==(const Vote&) const = default;
};

class Election {
 public:
  Election(const RaftOptions& options, Vote vote);

  const Vote& vote() const { return vote_; }
  Term term() const { return vote_.term; }
  bool leads() const { return role_ == Role::kLeader; }
  // 0: unknown.
  MemberId leader() const { return leader_; }
  // When a voter without a leader asks for votes.
  Time due() const { return heard_ + patience_; }
  // Time since a leader was last heard; 0 if this member leads.
  Time without_leader(Time now) const { return leads() ? Time(0) : now - led_at_; }
  // True if the vote has changed since the last call.
  bool take_unsaved() { return std::exchange(unsaved_, false); }

  // Follows this member, or none yet (0), in a term that is not older.
  void follow(Term term, MemberId leader, Time now);
  // Follows the leader of this term, from which a message has come.
  void heard_leader(Term term, MemberId leader, Time now);
  // The connection to the leader has ended.
  void lost_leader(Time now);

  // Becomes a candidate that asks whether it could win, or one that asks for the votes of a new
  // term. Votes for itself.
  void stand(bool is_real, Time now);
  // Counts a vote. False if it is not one for this candidate.
  bool count(const Message& reply);
  // True if a candidate has the votes of a quorum.
  bool is_won(const Configuration& configuration) const;
  // True for a candidate that asks for the votes of a new term.
  bool is_real() const { return role_ == Role::kCandidate; }
  // The term of its requests.
  Term asked_term() const { return is_real() ? term() : term() + 1; }
  void lead();

  // Answers a candidate, and remembers a vote that is given. `is_up_to_date`: its log is not older.
  bool grant(const Message& request, bool is_up_to_date, Time now);

 private:
  enum class Role { kFollower, kPreCandidate, kCandidate, kLeader };

  void wait_again(Time now);
  void save(Vote vote);

  RaftOptions options_;
  Random random_;
  Vote vote_;
  bool unsaved_ = false;
  Role role_ = Role::kFollower;
  MemberId leader_ = 0;
  std::set<MemberId> votes_;  // of a candidate
  Time heard_{};              // from the leader, or the last vote
  Time patience_{};           // after heard_, an election
  Time led_at_{};             // last time that a leader was heard
};

}  // namespace weft::store::internal
