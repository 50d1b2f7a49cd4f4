#include "weft/launch/internal/one_node.h"

#include <algorithm>
#include <vector>

#include "weft/launch/membership.h"

namespace weft::launch::internal {
namespace {

// A rank that nobody can replace leaves the membership. decide() answers its end.
RankPhase phase_of_ended(const RankEnd& end, const Situation& situation) {
  const RankPhase phase = phase_of(end);
  if (phase == RankPhase::kLost || (phase == RankPhase::kRefused && !is_meeting(situation)))
    return phase;
  // It was told to stop because the store had ended.
  const bool is_lost = situation.store_lost && end.told && !end.status.ok();
  return is_lost ? RankPhase::kLost : RankPhase::kLeft;
}

RankPhase phase_now(int local, const Situation& situation) {
  if (const auto& end = situation.ranks[static_cast<std::size_t>(local)])
    return phase_of_ended(*end, situation);
  if (is_meeting(situation) && !is_added(situation, local))
    return situation.job.ranks.at(local).replaces ? RankPhase::kLost : RankPhase::kStarting;
  const auto newcomer = situation.newcomers.find(local);
  return newcomer != situation.newcomers.end() ? newcomer->second : RankPhase::kMember;
}

// The earliest time of the next start.
Time next_start(const Situation& situation) {
  return situation.last_end + std::max(back_off(situation.job.never_joined),
                                       back_off(situation.failed_starts, kMaxStartBackOff));
}

OneNode facts_of(const Situation& situation, Time now) {
  const auto failed = first_failure(situation);
  const bool by_store =
      failed && situation.store_lost && situation.ranks[static_cast<std::size_t>(*failed)]->told;
  return {.has_trained = situation.trained || situation.job.restores > 0,
          .has_progressed = has_progressed(situation),
          .store_lost = situation.store_lost,
          .failed_first = failed && !by_store ? *failed : -1,
          .failed_starts = situation.failed_starts,
          .pauses = now < next_start(situation)};
}

NodeReport report_of(const Situation& situation, const Policy& policy, Time now) {
  const int here = static_cast<int>(situation.ranks.size());
  NodeReport report{.slots = std::max(policy.max_ranks, here),
                    .one_node = facts_of(situation, now)};
  for (const auto& [local, place] : situation.job.ranks) {
    const auto& end = situation.ranks[static_cast<std::size_t>(local)];
    report.ranks[local] = {.incarnation = place.incarnation,
                           .phase = phase_now(local, situation),
                           .code = end ? end->status.code() : 0};
  }
  return report;
}

// The number of ranks to reach now. Ranks that were added join before it falls.
int wanted_now(const Situation& situation, const Policy& policy) {
  const Membership& job = situation.job;
  const bool is_fixed = policy.max_ranks == 0 || job.wanted.ranks == 0;
  const int most = is_fixed ? static_cast<int>(situation.ranks.size())
                            : std::min(job.wanted.ranks, policy.max_ranks);
  const int least = situation.newcomers.empty() ? 0 : static_cast<int>(job.ranks.size());
  return std::max(most, least);
}

// The ranks of other nodes, which have numbers (--master-addr), as ranks of one further node. Their
// number and state are unknown. So many are added that the job can go on with them.
void add_other_nodes(Membership& job, std::vector<NodeReport>& nodes, int here, int min_ranks) {
  nodes.push_back({.node = 1, .slots = 0});
  job.usable = {};
  for (int other = 0; other < std::max(1, min_ranks); ++other)
    job.ranks[here + other] = {.node = 1, .member = true};
}

Membership next_of(const Situation& situation, const Policy& policy, Time now) {
  Membership job = situation.job;
  for (auto& [local, place] : job.ranks) {
    if (!is_meeting(situation) || is_added(situation, local)) continue;
    place.first = true;
    place.member = false;
  }
  job.wanted.ranks = wanted_now(situation, policy);
  std::vector<NodeReport> nodes = {report_of(situation, policy, now)};
  if (situation.other_nodes)
    add_other_nodes(job, nodes, static_cast<int>(situation.ranks.size()), policy.min_ranks);
  return next_membership(job, nodes,
                         {.min_ranks = policy.min_ranks,
                          .max_ranks = job.wanted.ranks,
                          .max_replacements = policy.max_replacements},
                         true);
}

std::optional<Decision> answer_loss(const Situation& situation, const Membership& next) {
  for (const auto& [local, before] : situation.job.ranks) {
    const RankPhase phase = phase_now(local, situation);
    if (phase != RankPhase::kLost && phase != RankPhase::kRefused) continue;
    const auto place = next.ranks.find(local);
    const bool stays = place != next.ranks.end() && place->second.incarnation == before.incarnation;
    if (place != next.ranks.end() && place->second.replaces && !stays)
      return Decision{Act::kReplace, {}, {}, local};
    if (!next.end.empty()) continue;
    if (!stays) return Decision{Act::kGoOnWithout, {}, {}, local};
    // It is replaced once a process can be started.
    if (phase == RankPhase::kLost) return Decision{Act::kWait, next_start(situation), {}, local};
  }
  return std::nullopt;
}

std::optional<Decision> resize(const Situation& situation, const Policy& policy,
                               const Membership& next, Time now) {
  const Membership& job = situation.job;
  if (now < next_start(situation)) return Decision{Act::kWait, next_start(situation)};
  const int here = static_cast<int>(situation.ranks.size());
  for (const auto& [rank, place] : next.ranks) {
    if (job.ranks.contains(rank)) continue;
    // A rank that leaves has its place until it has ended.
    const bool is_taken = rank < here && !situation.ranks[static_cast<std::size_t>(rank)];
    const int local = is_taken ? here : rank;
    if (local == here && here >= policy.max_ranks) return std::nullopt;
    const bool counts = job.gone.contains(rank) && next.replacements > job.replacements;
    return Decision{.act = Act::kGrow, .rank = local, .counts = counts};
  }
  // The ranks form their group again at each announcement. So it comes once, when all newcomers
  // have loaded. Ranks know how many they are.
  const Announcement& told = next.announcement;
  int members = 0, loading = 0;
  for (const auto& [local, place] : job.ranks) {
    members += place.member;
    loading += phase_now(local, situation) == RankPhase::kStarting;
  }
  const bool is_new = told.number != job.announcement.number && told.ranks != members;
  if (!is_new || loading > 0) return std::nullopt;
  return Decision{.act = Act::kAnnounce, .ranks = told.ranks, .newcomers = told.newcomers};
}

}  // namespace

bool is_meeting(const Situation& situation) {
  return !situation.meeting.empty() && !situation.stop_sent && !situation.store_lost &&
         !situation.other_nodes;
}

bool starts_again(const Situation& situation, const Policy& policy, Time now) {
  return next_of(situation, policy, now).attempt != situation.job.attempt;
}

std::optional<Decision> next_change(const Situation& situation, const Policy& policy, Time now) {
  const bool any_ended =
      std::any_of(situation.ranks.begin(), situation.ranks.end(),
                  [](const auto& end) { return end && !end->done_without && !end->left; });
  const bool may_resize = policy.max_ranks > 0 && situation.job.wanted.ranks > 0 && !any_ended;
  if (!any_ended && !may_resize) return std::nullopt;
  const Membership next = next_of(situation, policy, now);
  if (const auto answer = answer_loss(situation, next)) return answer;
  return may_resize ? resize(situation, policy, next, now) : std::nullopt;
}

void begin_attempt(Situation& situation, int ranks) {
  situation.ranks.assign(static_cast<std::size_t>(ranks), std::nullopt);
  situation.job.ranks.clear();
  for (int local = 0; local < ranks; ++local) situation.job.ranks[local] = {.member = true};
}

void commit(Situation& situation, const Decision& decision) {
  Membership& job = situation.job;
  const int local = decision.rank;
  if (decision.act == Act::kReplace || decision.act == Act::kGrow) {
    const bool replaces = decision.act == Act::kReplace;
    job.replacements += replaces || decision.counts ? 1 : 0;
    job.ranks[local] = {.replaces = replaces};
    job.gone.erase(local);
    if (!replaces) job.announcement.ranks = 0;
    situation.newcomers[local] = RankPhase::kStarting;
  } else if (decision.act == Act::kGoOnWithout) {
    job.ranks.erase(local);
    job.gone.insert(local);
    situation.ranks[static_cast<std::size_t>(local)]->done_without = true;
  } else if (decision.act == Act::kAnnounce) {
    job.announcement = {job.announcement.number + 1, decision.ranks, decision.newcomers};
  }
}

void join(Situation& situation, int local) {
  if (situation.newcomers.erase(local) == 0) return;
  situation.job.never_joined = situation.failed_starts = 0;
  const auto place = situation.job.ranks.find(local);
  if (place != situation.job.ranks.end()) place->second = {.member = true};
}

bool is_added(const Situation& situation, int local) {
  const auto place = situation.job.ranks.find(local);
  return place != situation.job.ranks.end() && !place->second.replaces && !place->second.member;
}

}  // namespace weft::launch::internal
