// decide() maps the state of an attempt (Situation) to one action, and keeps nothing between calls.
// The supervisor executes the action, changes the situation, and asks again. So each rule below can
// be tested without a process.
//
// decide() itself only decides how processes end: signals, grace periods, --max-restarts. It asks
// next_membership() which ranks are replaced, left out or added (go_on()), and when all ranks start
// again (may_begin_again()). internal/one_node.h translates.
//
// The order of the rules is their priority. On one node:
//
//    is_meeting()    the first group can never form: all ranks start again
//    all ended       finish, or all ranks start again; with other nodes, go_on() comes first
//    dismiss()       ends newcomers whose peers have ended
//    shut_down()     the ranks were told to stop: waits for them, then kills them, and then goes on
//                    without those that the system does not end
//    losses          of the state, the store, or the servers
//    go_on()         the next change of the membership
//    first_failure() of a rank that go_on() has not taken
//
// On nodes that meet, the job's membership decides which ranks run. follow_membership() then only
// decides when this launcher ends.
//
// Blame. One fault makes all ranks fail within seconds. is_consequence() recognizes the ends that
// other ranks have caused, and first_failure() takes the earliest of the others. If every end is a
// consequence, blame() follows from the first one who waited for whom, to the rank that was awaited
// and did not fail because of a wait.
#include "weft/launch/supervision.h"

#include <signal.h>

#include <algorithm>
#include <tuple>

#include "weft/base/error.h"
#include "weft/launch/internal/one_node.h"

namespace weft::launch {

namespace {

// True if the rank ended because of a wrong configuration or call.
bool is_wrong(const RankEnd& end) {
  const auto is = [&](Errc code) {
    return (end.cause && end.cause->code == code) ||
           (!end.status.signaled && end.status.value == exit_code(code));
  };
  return is(Errc::kBadConfig) || is(Errc::kInvalidArgument);
}

// True if the rank stopped because it was asked to: by a signal to it or to another rank.
bool was_asked_to_stop(const RankEnd& end) {
  return !end.status.signaled &&
         (end.status.value == 128 + SIGTERM || end.status.value == 128 + SIGINT);
}

// True if the others can do without the rank's process: it failed by itself, or never met them, and
// not because of a wrong configuration, which would fail again.
bool is_lost(const RankEnd& end) {
  const bool by_itself = !is_consequence(end) || (end.unmet && !end.told);
  return !end.status.ok() && !end.done_without && by_itself && !was_asked_to_stop(end) &&
         !is_wrong(end);
}

// True if the process was to replace a lost rank and is another program than the running job's.
// Another try would be the same, but the others can do without it.
bool is_refused(const RankEnd& end) { return end.joining && !end.done_without && is_wrong(end); }

// True if a running rank of the job is so.
template <class Test>
bool any_rank(const Situation& situation, Test is_so) {
  const auto& ranks = situation.job.ranks;
  return std::any_of(ranks.begin(), ranks.end(), [&](const auto& entry) {
    return !situation.ranks[static_cast<std::size_t>(entry.first)] &&
           is_so(entry.first, entry.second);
  });
}

// True if a rank that replaces a lost one has not joined the others yet.
bool recovers(const Situation& situation) {
  return any_rank(situation, [](int, const Placement& place) { return place.replaces; });
}

// True if a running rank has the job's state.
bool state_remains(const Situation& situation) {
  return situation.other_nodes || any_rank(situation, [&](int local, const Placement& place) {
           return place.member && !situation.newcomers.contains(local);
         });
}

// The next change of the ranks; nullopt if there is none or the job must end.
std::optional<Decision> go_on(const Situation& situation, const Policy& policy, Time now) {
  // There is no group to go on with, or to join.
  if (internal::is_meeting(situation)) return std::nullopt;
  if (situation.stop_sent || situation.store_lost || situation.servers_lost || situation.hang ||
      situation.unsaved || !state_remains(situation))
    return std::nullopt;
  return internal::next_change(situation, policy, now);
}

// True once a rank has ended its program: the others will, too.
bool is_finishing(const Situation& situation) {
  return std::any_of(situation.ranks.begin(), situation.ranks.end(),
                     [](const auto& end) { return end && end->status.ok() && !end->left; });
}

// True if ranks that have not joined the others never will: these have finished, or have stopped.
bool have_others_ended(const Situation& situation) {
  if (const auto& followed = situation.followed)
    return followed->done || (followed->stopped && !followed->has_members);
  const bool is_asked = situation.stop_signals > 0 || situation.asked;
  return (is_finishing(situation) || is_asked) && !state_remains(situation);
}

// A rank to end that has not joined the others, which have ended; nullopt if there is none.
std::optional<Decision> dismiss(const Situation& situation) {
  if (!have_others_ended(situation)) return std::nullopt;
  const auto turn = [&](int local) {
    if (!internal::is_added(situation, local)) return 0;
    return situation.newcomers.at(local) == RankPhase::kStarting ? 1 : 2;
  };
  std::optional<int> next;
  for (const auto& [local, phase] : situation.newcomers) {
    if (!situation.dismissed.contains(local) && (!next || turn(local) < turn(*next))) next = local;
  }
  return next ? std::optional(Decision{Act::kDismiss, {}, {}, *next}) : std::nullopt;
}

// True if all ranks start again.
bool may_begin_again(const Situation& situation, const Policy& policy, Time now) {
  const bool ends = situation.stop_signals > 0 || situation.asked || situation.servers_lost ||
                    situation.hang || situation.unsaved;
  return !ends && internal::starts_again(situation, policy, now);
}

// What follows when all ranks have ended.
Act after_the_end(const Situation& situation, const Policy& policy, Time now) {
  const auto failed = first_failure(situation);
  if (!failed || situation.stop_signals > 0 || situation.asked) return Act::kFinish;
  if (situation.restarts < policy.max_restarts) return Act::kRestart;
  return may_begin_again(situation, policy, now) ? Act::kRestore : Act::kFinish;
}

}  // namespace

namespace {

// The next action on ranks that were told to stop; nullopt if they may go on.
std::optional<Decision> shut_down(const Situation& situation, const Policy& policy, Time now) {
  if (situation.kill_sent) {
    const Time limit = *situation.kill_sent + kKillLimit;
    if (now < limit) return Decision{Act::kWait, limit};
    const auto stuck = std::find(situation.ranks.begin(), situation.ranks.end(), std::nullopt);
    return Decision{Act::kAbandon, {}, {}, static_cast<int>(stuck - situation.ranks.begin())};
  }
  if (situation.stop_signals >= 2) return Decision{Act::kKill, {}, "a second signal"};
  if (situation.stop_sent) {
    const auto limit = situation.grace_end.value_or(*situation.stop_sent + policy.shutdown_timeout);
    const std::string period = situation.grace_end ? "grace period" : "shutdown timeout";
    return now < limit ? Decision{Act::kWait, limit}
                       : Decision{Act::kKill, {}, "still running at the end of the " + period};
  }
  if (situation.grace_end && now >= *situation.grace_end)
    return Decision{Act::kKill, {}, "still running at the end of the grace period"};
  return std::nullopt;
}

// What a launcher does about its ranks when the job's membership is over, or it was told to stop.
Decision end_by_membership(const Situation& situation, const Policy& policy, Time now) {
  if (const auto ending = shut_down(situation, policy, now)) return *ending;
  const Situation::Followed& followed = *situation.followed;
  if (!followed.over || followed.done) return {};
  const auto limit = *followed.over + (followed.stopped ? Time::duration{} : policy.survivor_grace);
  return now < limit ? Decision{Act::kWait, limit}
                     : Decision{Act::kTerminate, {}, "the job has ended"};
}

Decision follow_membership(const Situation& situation, const Policy& policy, Time now) {
  const Situation::Followed& followed = *situation.followed;
  Time last = followed.over.value_or(Time{});
  bool running = false;
  for (const auto& end : situation.ranks) {
    running = running || !end;
    if (end) last = std::max(last, end->when);
  }
  if (const auto needless = dismiss(situation)) return *needless;
  if (running) return end_by_membership(situation, policy, now);
  const bool is_over = followed.over.has_value();
  const bool late = situation.grace_end && now >= *situation.grace_end;
  if (situation.kill_sent || followed.all_know || followed.away || late) return {Act::kFinish};
  if (!is_over && !situation.stop_sent) return {Act::kWait, situation.grace_end};
  const auto all_left = followed.all_left;
  if (followed.serves && followed.done && !situation.stop_sent && !all_left) return {};
  const Time since = is_over ? all_left.value_or(last) : *situation.stop_sent;
  const Time limit = std::max(last, since) + kFarewell;
  return now < limit ? Decision{Act::kWait, limit} : Decision{Act::kFinish};
}

}  // namespace

RankPhase phase_of(const RankEnd& end) {
  if (end.status.ok()) return end.left ? RankPhase::kLeft : RankPhase::kDone;
  if (is_refused(end)) return RankPhase::kRefused;
  return is_lost(end) ? RankPhase::kLost : RankPhase::kFailed;
}

Decision decide(const Situation& now_seen, const Policy& policy, Time now) {
  if (now_seen.followed) return follow_membership(now_seen, policy, now);
  if (internal::is_meeting(now_seen) && may_begin_again(now_seen, policy, now))
    return {Act::kRestore};
  const bool all_ended = std::all_of(now_seen.ranks.begin(), now_seen.ranks.end(),
                                     [](const auto& end) { return end.has_value(); });
  if (all_ended) {
    // Ranks of other nodes may hold the state.
    const auto change = now_seen.other_nodes ? go_on(now_seen, policy, now) : std::nullopt;
    return change ? *change : Decision{after_the_end(now_seen, policy, now)};
  }
  if (const auto needless = dismiss(now_seen)) return *needless;
  if (const auto ending = shut_down(now_seen, policy, now)) return *ending;
  if (recovers(now_seen) && !state_remains(now_seen) && !have_others_ended(now_seen)) {
    if (may_begin_again(now_seen, policy, now)) return {Act::kRestore};
    return {Act::kTerminate, {}, "no rank is left that has the state of the job"};
  }
  if (now_seen.store_lost) return {Act::kTerminate, {}, "the store's process has ended"};
  if (now_seen.servers_lost) return {Act::kTerminate, {}, *now_seen.servers_lost};
  if (const auto change = go_on(now_seen, policy, now)) return *change;
  if (const auto failed = first_failure(now_seen)) {
    const auto limit =
        now_seen.ranks[static_cast<std::size_t>(*failed)]->when + policy.survivor_grace;
    return now < limit ? Decision{Act::kWait, limit}
                       : Decision{Act::kTerminate, {}, "another rank has failed"};
  }
  return {};
}

std::set<int> replacements(const Situation& situation) {
  std::set<int> found;
  for (const auto& [local, phase] : situation.newcomers)
    if (!internal::is_added(situation, local)) found.insert(local);
  return found;
}

std::set<int> ranks_that_stop_later(const Situation& situation) {
  return state_remains(situation) ? replacements(situation) : std::set<int>{};
}

std::set<int> needless_ranks(const Situation& situation, int size) {
  int members = 0;
  for (const auto& [local, place] : situation.job.ranks) {
    const bool runs = !situation.ranks[static_cast<std::size_t>(local)];
    members += place.member && runs && !situation.newcomers.contains(local);
  }
  std::set<int> needless = replacements(situation);
  const bool is_whole = size > 0 && !situation.other_nodes && members >= size;
  if (!is_whole)
    std::erase_if(needless, [&](int local) { return situation.first_rank + local < size; });
  return needless;
}

bool has_progressed(const Situation& situation) { return situation.step > situation.last_step; }

Situation next_attempt(const Situation& situation, Act how) {
  const bool restores = how == Act::kRestore;
  Situation next;
  next.first_rank = situation.first_rank;
  next.other_nodes = situation.other_nodes;
  next.restarts = situation.restarts + 1;
  next.job.replacements = situation.job.replacements + (restores ? 1 : 0);
  if (restores) next.job.restores = has_progressed(situation) ? 1 : situation.job.restores + 1;
  next.job.wanted = situation.job.wanted;
  next.job.usable = situation.job.usable;
  next.last_step = std::max(situation.last_step, situation.step);
  return next;
}

HangAct act_on(const Hang& hang, const Policy& policy) {
  if (!hang.is_certain()) return HangAct::kWarn;
  if (policy.on_hang == OnHang::kEnd) return HangAct::kEnd;
  const bool replaces = policy.on_hang == OnHang::kReplace ||
                        (hang.how == Hang::How::kHeld && policy.max_replacements > 0);
  return replaces ? HangAct::kKill : HangAct::kWarn;
}

bool is_consequence(const RankEnd& end) {
  // A rank that fails because of another one exits or aborts. Any other signal is a fault of its
  // own, also in a recovery, in which the recorded cause is still the loss of the other one.
  if (end.status.signaled && end.status.value != SIGABRT) return end.told;
  const auto is_one = [&](Errc code) {
    return (!end.status.signaled && end.status.value == exit_code(code)) ||
           (end.cause && end.cause->code == code);
  };
  const bool waited = end.cause && end.cause->code == Errc::kTimeout && end.cause->peer >= 0;
  return end.told || waited || is_one(Errc::kPeerLost) || is_one(Errc::kAborted);
}

std::optional<int> first_failure(const Situation& situation) {
  std::optional<int> first;
  const bool others_failed =
      std::any_of(situation.ranks.begin(), situation.ranks.end(),
                  [](const auto& end) { return end && !end->status.ok() && !end->done_without; });
  const bool others_run = std::any_of(situation.ranks.begin(), situation.ranks.end(),
                                      [](const auto& end) { return !end || !end->done_without; });
  // Losses that the others went on without count only if no other rank is left.
  if (!others_failed && others_run) return std::nullopt;
  const auto order = [&](int rank) {
    const RankEnd& end = *situation.ranks[static_cast<std::size_t>(rank)];
    // The loss of a rank that is done without explains no later failure but those that it caused.
    const int how = is_consequence(end) ? 2 : end.done_without ? 1 : 0;
    return std::make_tuple(how, end.told, end.when, !end.status.signaled);
  };
  for (int rank = 0; rank < static_cast<int>(situation.ranks.size()); ++rank) {
    const auto& end = situation.ranks[static_cast<std::size_t>(rank)];
    if (!end || end->status.ok()) continue;
    if (!first || order(rank) < order(*first)) first = rank;
  }
  return first;
}

namespace {

// The rank that `rank` waited for, as an index; nullopt if it is unknown.
std::optional<int> awaited_by(const Situation& situation, int rank) {
  const auto& end = situation.ranks[static_cast<std::size_t>(rank)];
  if (!end->cause || end->cause->peer < 0) return std::nullopt;
  return end->cause->peer - situation.first_rank;
}

}  // namespace

std::optional<Blame> blame(const Situation& situation) {
  using How = Blame::How;
  const auto first = first_failure(situation);
  if (!first) return std::nullopt;
  if (situation.hang && situation.ranks[static_cast<std::size_t>(situation.hang->rank)])
    return Blame{How::kHung, situation.hang->rank, -1};
  const Blame itself{How::kFailed, *first, -1};
  const RankEnd& end = *situation.ranks[static_cast<std::size_t>(*first)];
  if (!is_consequence(end) || end.told) return itself;
  if (!situation.stopped.empty()) return Blame{How::kStopped, *situation.stopped.begin(), *first};
  std::set<int> seen;
  // Ranks that wait for each other in a cycle name nobody: the first failure is blamed itself.
  for (int at = *first; seen.insert(at).second;) {
    const auto next = awaited_by(situation, at);
    if (!next) return at == *first ? itself : Blame{How::kFailed, at, -1};
    const bool known = *next >= 0 && *next < static_cast<int>(situation.ranks.size());
    const auto* const peer = known ? &situation.ranks[static_cast<std::size_t>(*next)] : nullptr;
    if (peer == nullptr || !*peer || (*peer)->told) return Blame{How::kSilent, *next, at};
    if ((*peer)->status.ok()) return Blame{How::kLeft, *next, at};
    at = *next;
  }
  return itself;
}

}  // namespace weft::launch
