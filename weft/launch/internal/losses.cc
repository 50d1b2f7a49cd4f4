// What becomes of lost ranks: replaced, done without, or all ranks start again.
//
//   lost ranks ─┬─ the first group has not formed ─────────────> start_again()
//               ├─ a member survives ──────────────────────────> replace() each of them
//               └─ none survives ─┬─ none of them runs ────────> start_again()
//                                 ├─ some run on a leaving node ─> the job stops with a checkpoint
//                                 └─ some run on a node set aside ─> these stay
//
// A launcher that decides by itself adds facts (OneNode). Until a process can be started, a job
// that may not shrink waits with its lost ranks, and no replacement counts. All ranks start again
// unless the program was the first to fail, also after the end of the store. While the first group
// forms, a program that has failed starts again, too, and with --min-ranks without a replacement.
//
// A rank is lost if its node says so, if its node has no report any more, or if its node gets no
// ranks and the rank need not stay until its successor has loaded.
//
// A node without a report may only be out of reach, and its ranks may train on. So start_again()
// needs a rank of the last group on a node that reports: such a rank is lost for certain, and the
// old group cannot go on without it. Two groups of one job thus never train at once.
#include <algorithm>

#include "weft/base/error.h"
#include "weft/launch/internal/membership_update.h"

namespace weft::launch::internal {
bool MembershipUpdate::is_lost(int rank, const Placement& place) const {
  if (is_unused(place.node)) return !leaves_later(rank, place);
  return node(place.node) == nullptr || is(rank, place, RankPhase::kLost) ||
         is(rank, place, RankPhase::kRefused);
}

std::string MembershipUpdate::loss(int rank, const Placement& place) const {
  if (membership_.leaving.contains(place.node))
    return rank_name(rank) + " leaves with node " + std::to_string(place.node);
  const std::string name = rank_name(rank) + " is lost";
  const RankReport* const said = report(rank, place);
  if (node(place.node) == nullptr)
    return name + ": node " + std::to_string(place.node) + " is lost or cannot be reached";
  return name + (said != nullptr && !said->why.empty() ? ": " + said->why : "");
}

int MembershipUpdate::code_of(int rank, const Placement& place) const {
  const RankReport* const said = report(rank, place);
  return said != nullptr && said->code != 0 ? said->code : exit_code(Errc::kPeerLost);
}

void MembershipUpdate::replace_lost() {
  std::vector<int> lost;
  for (const auto& [rank, place] : membership_.ranks) {
    if (is_lost(rank, place)) lost.push_back(rank);
  }
  if (lost.empty()) return;
  if (is_meeting() && std::any_of(lost.begin(), lost.end(),
                                  [&](int rank) { return membership_.ranks.at(rank).first; }))
    return start_again(lost);
  const bool survives =
      std::any_of(membership_.ranks.begin(), membership_.ranks.end(), [&](const auto& entry) {
        return entry.second.member && !is_lost(entry.first, entry.second);
      });
  if (!survives) {
    const auto runs = [&](int rank) {
      return is(rank, membership_.ranks.at(rank), RankPhase::kMember);
    };
    const auto holder = std::find_if(lost.begin(), lost.end(), runs);
    if (holder == lost.end()) return start_again(lost);
    // Ranks that still run on nodes to be left have the only state: the job ends with a checkpoint,
    // or the ranks stay.
    const int number = membership_.ranks.at(*holder).node;
    if (membership_.leaving.contains(number)) return stop(node(number)->leave, number);
    std::erase_if(lost, runs);
  }
  MembershipUpdate answered = *this;
  for (const int rank : lost) answered.replace(rank);
  if (!answered.has_ended() || !waits_for_start(lost))
    membership_ = std::move(answered.membership_);
}

bool MembershipUpdate::may_replace(const OneNode& own) const {
  return membership_.replacements < policy_.max_replacements &&
         membership_.never_joined < kMaxNeverJoined && own.failed_starts < kMaxFailedStarts;
}

bool MembershipUpdate::waits_for_start(const std::vector<int>& lost) const {
  const OneNode* const own = one_node();
  return own != nullptr && own->pauses && may_replace(*own) &&
         std::any_of(lost.begin(), lost.end(), [&](int rank) {
           return is(rank, membership_.ranks.at(rank), RankPhase::kLost);
         });
}

void MembershipUpdate::replace(int rank) {
  const Placement was = membership_.ranks.at(rank);
  if (const auto next = membership_.successors.find(rank); next != membership_.successors.end()) {
    membership_.ranks[rank] = next->second;
    membership_.ranks[rank].replaces = true;
    membership_.successors.erase(next);
    return;
  }
  const std::string text = loss(rank, was);
  const int code = code_of(rank, was);
  const bool is_missed = was.member || was.replaces || was.first;
  const bool refused = is(rank, was, RankPhase::kRefused);
  // Newcomers that end before they join, one after the other, are a crash loop. A launcher that
  // decides by itself has counted this one when it ended.
  if (!was.member && !was.first && !membership_.leaving.contains(was.node) && one_node() == nullptr)
    ++membership_.never_joined;
  membership_.ranks.erase(rank);
  membership_.gone.insert(rank);
  // An additional rank that is lost is placed again when the job grows.
  if (is_missed && !refused && membership_.replacements < policy_.max_replacements &&
      put(rank, true)) {
    ++membership_.replacements;
    return note(text + "; a new process on node " +
                std::to_string(membership_.ranks.at(rank).node) + " replaces it" +
                count_of_replacements());
  }
  if (refused) membership_.never_joined = kMaxNeverJoined;
  if (is_missed) check_enough(text, code);
  if (membership_.end.empty()) note(text + "; the others go on without it");
}

std::string MembershipUpdate::count_of_replacements() const {
  return launch::count_of_replacements(membership_.replacements, policy_.max_replacements);
}

void MembershipUpdate::check_enough(const std::string& text, int code) {
  const auto left =
      std::count_if(membership_.ranks.begin(), membership_.ranks.end(),
                    [](const auto& entry) { return entry.second.member || entry.second.replaces; });
  const int usable = membership_.usable.most(static_cast<int>(left));
  if (policy_.min_ranks > 0 && usable >= policy_.min_ranks) return;
  const std::string number = std::to_string(policy_.min_ranks);
  end(text + (policy_.min_ranks == 0 ? "; it cannot be replaced"
              : left >= policy_.min_ranks
                  ? "; the program uses " + membership_.usable.describe() + ", so fewer than " +
                        number + " of those left (--min-ranks)"
                  : "; fewer than " + number + " ranks are left (--min-ranks)"),
      code);
}

int MembershipUpdate::restores_so_far() const {
  const OneNode* const own = one_node();
  const bool has_progressed =
      own != nullptr ? own->has_progressed : membership_.saved.serial > membership_.saved_before;
  return has_progressed ? 0 : membership_.restores;
}

void MembershipUpdate::start_again(const std::vector<int>& lost) {
  const int first = lost.front();
  const Placement& place = membership_.ranks.at(first);
  const std::string text = loss(first, place);
  const bool meets = is_meeting();
  if (!may_start_again(lost)) return end(text, code_of(first, place));
  Membership again = membership_;
  again.ranks.clear();
  again.gone.clear();
  again.successors.clear();
  again.announcement = {membership_.announcement.number, 0, {}};
  const int before = static_cast<int>(membership_.ranks.size());
  // form() works on membership_. From here on, `again` has the membership before, which comes back
  // if nodes are missing.
  std::swap(membership_, again);
  form();
  const int least = policy_.min_ranks > 0 ? policy_.min_ranks : std::min(before, most_ranks());
  if (static_cast<int>(membership_.ranks.size()) < least) {
    membership_ = again;
    return end(text + "; too few nodes are left to start all ranks again",
               exit_code(Errc::kPeerLost));
  }
  ++membership_.attempt;
  membership_.restores = restores_so_far() + 1;
  membership_.saved_before = membership_.saved.serial;
  ++membership_.replacements;
  note(text +
       (meets ? " before all ranks have met" : "; no rank is left that has the job's state") +
       ": starting all ranks again" +
       (membership_.run.empty() ? "" : ", from the newest checkpoint") + count_of_replacements());
}

bool MembershipUpdate::may_start_again(const std::vector<int>& lost) const {
  const bool meets = is_meeting();
  if (const OneNode* const own = one_node())
    return launch::may_start_again(
        {.restores = restores_so_far(),
         .may_replace = may_replace(*own) || (meets && policy_.min_ranks > 0),
         .meets = meets,
         .has_trained = own->has_trained,
         .fails_again = !meets && has_program_failed(*own)});
  const bool had_members = count(&Placement::member) > 0;
  bool certain = false;
  for (const auto& [rank, place] : membership_.ranks) {
    if (had_members && !place.member) continue;
    certain = certain || node(place.node) != nullptr;
  }
  const bool fails_again = std::any_of(lost.begin(), lost.end(), [&](int rank) {
    const RankReport* const said = report(rank, membership_.ranks.at(rank));
    // A code from 128 on is a signal, which says nothing about the program.
    return said != nullptr && said->phase >= RankPhase::kLost && said->code < 128;
  });
  return certain && launch::may_start_again(
                        {.restores = restores_so_far(),
                         .may_replace = membership_.replacements < policy_.max_replacements,
                         .meets = meets,
                         .has_trained = !membership_.run.empty(),
                         .fails_again = fails_again});
}

// A rank that another one has ended, or that its launcher told to stop, says nothing about the
// program. Only the first failure does.
bool MembershipUpdate::has_program_failed(const OneNode& own) const {
  if (own.failed_first < 0) return !own.store_lost;
  const auto first = membership_.ranks.find(own.failed_first);
  if (first == membership_.ranks.end()) return true;  // nobody can take its place
  const RankReport* const said = report(first->first, first->second);
  return said == nullptr || said->phase != RankPhase::kLost || said->code < 128;
}

}  // namespace weft::launch::internal
