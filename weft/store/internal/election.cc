#include "weft/store/internal/election.h"

namespace weft::store::internal {

Election::Election(const RaftOptions& options, Vote vote)
    : options_(options), random_(options.seed), vote_(vote) {
  wait_again(Time(0));
}

void Election::wait_again(Time now) {
  const auto election = options_.timing.election;
  heard_ = now;
  patience_ =
      election +
      Time(static_cast<Time::rep>(random_.below(static_cast<std::uint64_t>(election.count()))));
}

void Election::save(Vote vote) {
  unsaved_ = unsaved_ || vote != vote_;
  vote_ = vote;
}

void Election::follow(Term term, MemberId leader, Time now) {
  if (leads()) led_at_ = now;
  if (term > vote_.term) save({term, 0});
  if (role_ != Role::kFollower) wait_again(now);
  role_ = Role::kFollower;
  leader_ = leader;
}

void Election::heard_leader(Term term, MemberId leader, Time now) {
  follow(term, leader, now);
  wait_again(now);
  led_at_ = now;
}

void Election::lost_leader(Time now) {
  leader_ = 0;
  wait_again(now);
  // Sooner than after a silence, and at different times, so that members do not compete.
  patience_ = Time(static_cast<Time::rep>(
      random_.below(static_cast<std::uint64_t>(options_.timing.election.count() / 2))));
}

void Election::stand(bool is_real, Time now) {
  role_ = is_real ? Role::kCandidate : Role::kPreCandidate;
  leader_ = 0;
  votes_ = {options_.me};
  wait_again(now);
  if (is_real) save({term() + 1, options_.me});
}

bool Election::count(const Message& reply) {
  const bool is_vote = reply.type == Message::Type::kVoteReply;
  if (role_ != (is_vote ? Role::kCandidate : Role::kPreCandidate) || !reply.accepted ||
      reply.term != asked_term())
    return false;
  votes_.insert(reply.from);
  return true;
}

bool Election::is_won(const Configuration& configuration) const {
  return is_quorum(configuration, [&](MemberId id) { return votes_.contains(id); });
}

void Election::lead() {
  role_ = Role::kLeader;
  leader_ = options_.me;
}

bool Election::grant(const Message& request, bool is_up_to_date, Time now) {
  if (request.type == Message::Type::kPreVote) {
    const bool hears_leader = leads() || (leader_ != 0 && now - heard_ < options_.timing.election);
    return request.term > term() && is_up_to_date && !hears_leader;
  }
  const bool is_free =
      vote_.candidate == 0 || vote_.candidate == request.from || options_.flaw == Flaw::kVotesTwice;
  if (request.term != term() || !is_free || !is_up_to_date) return false;
  save({term(), request.from});
  wait_again(now);
  return true;
}

}  // namespace weft::store::internal
