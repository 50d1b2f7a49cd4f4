#include "weft/launch/internal/one_node.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/launch/membership.h"

namespace weft::launch::internal {
namespace {

// What next_membership() reads.
struct OneNode {
  MembershipPolicy policy;
  Membership membership;
  std::vector<NodeReport> reports;  // the first one is of this node
  std::vector<int> places;          // local rank of each rank of the membership on this node

  Membership next() const { return next_membership(membership, reports, policy, true); }
  void add_rank(NodeReport& node, int rank, RankPhase phase, bool replaces) {
    const int incarnation = ++membership.incarnations;
    membership.ranks[rank] = {.node = node.node,
                              .incarnation = incarnation,
                              .member = phase >= RankPhase::kMember,
                              .replaces = replaces};
    node.ranks[rank] = {incarnation, phase};
  }
};

RankPhase phase_of_running(int local, const Situation& situation) {
  if (situation.waiting.contains(local)) return RankPhase::kWaiting;
  const bool loads = situation.growing.contains(local) || situation.joining.contains(local);
  return loads ? RankPhase::kStarting : RankPhase::kMember;
}

// A rank that leaves has no number in the membership, so that no new one takes its place meanwhile.
void add_ranks(const Situation& situation, OneNode& job) {
  for (std::size_t i = 0; i < situation.ranks.size(); ++i) {
    const int local = static_cast<int>(i), rank = static_cast<int>(job.places.size());
    if (situation.leaving.contains(local)) continue;
    job.places.push_back(local);
    const auto& end = situation.ranks[i];
    if (end && end->done_without) job.membership.gone.insert(rank);
    if (situation.waiting.contains(local)) job.membership.announcement.newcomers.insert(rank);
    const RankPhase phase = end ? phase_of(*end) : phase_of_running(local, situation);
    if (phase <= RankPhase::kRefused)
      job.add_rank(job.reports.front(), rank, phase, !end && situation.joining.contains(local));
  }
}

// Their number and state are unknown. The job can go on with them.
void add_other_nodes(OneNode& job) {
  NodeReport others{.node = 1, .slots = std::max(1, job.policy.min_ranks)};
  const int first = static_cast<int>(job.places.size());
  for (int slot = 0; slot < others.slots; ++slot)
    job.add_rank(others, first + slot, RankPhase::kMember, false);
  job.reports.push_back(std::move(others));
}

OneNode one_node(const Situation& situation, const Policy& policy) {
  const bool may_start = situation.failed_starts < kMaxFailedStarts;
  OneNode job{
      .policy = {.min_ranks = policy.min_ranks, .max_replacements = policy.max_replacements},
      .membership = {.formed = true,
                     .replacements = situation.replacements,
                     .never_joined = may_start ? situation.never_joined : kMaxNeverJoined,
                     .announcement = {.ranks = situation.announced}},
      .reports = {{.node = 0}}};
  add_ranks(situation, job);
  if (situation.other_nodes) add_other_nodes(job);
  if (!situation.other_nodes) job.membership.usable = situation.usable;
  job.reports.front().slots = std::max(policy.max_ranks, static_cast<int>(situation.ranks.size()));
  // Ranks that were added join before the number of ranks falls.
  const bool grows = !situation.growing.empty() || !situation.waiting.empty();
  const int least = grows ? static_cast<int>(job.membership.ranks.size()) : 0;
  job.policy.max_ranks = std::max(std::min(situation.wanted, policy.max_ranks), least);
  job.membership.wanted = {situation.requested ? 1 : 0, job.policy.max_ranks};
  return job;
}

// The earliest time of the next start.
Time next_start(const Situation& situation) {
  return situation.last_end + std::max(back_off(situation.never_joined),
                                       back_off(situation.failed_starts, kMaxStartBackOff));
}

}  // namespace

std::optional<Decision> act_on_loss(const Situation& situation, const Policy& policy, Time now) {
  // decide() asks after each event. Most of them change nothing here.
  const bool any_failed =
      std::any_of(situation.ranks.begin(), situation.ranks.end(),
                  [](const auto& end) { return end && !end->status.ok() && !end->done_without; });
  if (!any_failed) return std::nullopt;
  OneNode job = one_node(situation, policy);
  Membership next = job.next();
  for (const auto& [rank, said] : job.reports.front().ranks) {
    if (said.phase < RankPhase::kLost) continue;
    const int local = job.places[static_cast<std::size_t>(rank)];
    const auto place = next.ranks.find(rank);
    const bool is_replaced = place != next.ranks.end() && place->second.replaces;
    const Time start = next_start(situation);
    if (is_replaced && now >= start) return Decision{Act::kReplace, {}, {}, local};
    // While a new process has to wait, a job that may shrink does not. It may add the rank later.
    if (is_replaced) {
      job.reports.front().slots = 0;
      next = job.next();
    }
    if (next.end.empty()) return Decision{Act::kGoOnWithout, {}, {}, local};
    if (is_replaced) return Decision{Act::kWait, start, {}, local};
  }
  return std::nullopt;
}

Decision act_on_size(const Situation& situation, const Policy& policy, Time now) {
  const OneNode job = one_node(situation, policy);
  const Membership next = job.next();
  for (const auto& [rank, place] : next.ranks) {
    if (job.membership.ranks.contains(rank)) continue;
    const bool is_new = rank >= std::ssize(job.places);
    // All places are taken as long as a rank that leaves still runs.
    if (is_new && std::ssize(situation.ranks) >= policy.max_ranks) return {};
    const Time start = next_start(situation);
    if (now < start) return {Act::kWait, start};
    const int local = is_new ? static_cast<int>(situation.ranks.size())
                             : job.places[static_cast<std::size_t>(rank)];
    const bool counts =
        job.membership.gone.contains(rank) && next.replacements > job.membership.replacements;
    return {.act = Act::kGrow, .rank = local, .counts = counts};
  }
  // The ranks form their group again at each announcement. So it comes once, when all newcomers
  // have loaded. Ranks know how many they are.
  const Announcement& told = next.announcement;
  const auto members = std::count_if(job.membership.ranks.begin(), job.membership.ranks.end(),
                                     [](const auto& entry) { return entry.second.member; });
  if (told.number == 0 || told.ranks == members || !situation.growing.empty()) return {};
  return {Act::kAnnounce, {}, {}, -1, told.ranks};
}

}  // namespace weft::launch::internal
