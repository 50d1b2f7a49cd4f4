#include "weft/launch/supervision.h"

#include <algorithm>
#include <tuple>

#include "weft/base/error.h"

namespace weft::launch {

namespace {

// A lost rank that a new process can replace: it failed by itself, and not because of a wrong
// configuration, which would fail again.
bool can_be_replaced(const RankEnd& end) {
  const auto is = [&](Errc code) {
    return (end.cause && end.cause->code == code) ||
           (!end.status.signaled && end.status.value == exit_code(code));
  };
  return !end.status.ok() && !is_consequence(end) && !is(Errc::kBadConfig) &&
         !is(Errc::kInvalidArgument);
}

// True if a rank that has the job's state still runs.
bool state_remains(const Situation& situation) {
  for (std::size_t i = 0; i < situation.ranks.size(); ++i) {
    if (!situation.ranks[i] && !situation.joining.contains(static_cast<int>(i))) return true;
  }
  return situation.other_nodes;
}

// The next lost rank to replace; nullopt if none is lost or it must not be replaced.
std::optional<int> to_replace(const Situation& situation, const Policy& policy) {
  if (situation.stop_sent || situation.store_lost || !state_remains(situation) ||
      situation.replacements >= policy.max_replacements ||
      situation.never_joined >= kMostNeverJoined)
    return std::nullopt;
  for (std::size_t i = 0; i < situation.ranks.size(); ++i) {
    if (situation.ranks[i] && can_be_replaced(*situation.ranks[i])) return static_cast<int>(i);
  }
  return std::nullopt;
}

}  // namespace

Decision decide(const Situation& now_seen, const Policy& policy, Time now) {
  const auto failed = first_failure(now_seen);
  const bool all_ended = std::all_of(now_seen.ranks.begin(), now_seen.ranks.end(),
                                     [](const auto& end) { return end.has_value(); });
  if (all_ended) {
    const bool again = failed && now_seen.stop_signals == 0 && !now_seen.store_lost &&
                       now_seen.restarts < policy.max_restarts;
    return {again ? Act::kRestart : Act::kFinish};
  }
  if (now_seen.kill_sent) return {};
  if (now_seen.stop_signals >= 2) return {Act::kKill, {}, "a second signal"};
  if (now_seen.stop_sent) {
    const auto limit = *now_seen.stop_sent + policy.shutdown_timeout;
    return now < limit
               ? Decision{Act::kWait, limit}
               : Decision{Act::kKill, {}, "still running at the end of the shutdown timeout"};
  }
  if (const auto lost = to_replace(now_seen, policy)) return {Act::kReplace, {}, {}, *lost};
  if (!now_seen.joining.empty() && !state_remains(now_seen))
    return {Act::kTerminate, {}, "no rank is left that has the state of the job"};
  if (now_seen.store_lost) return {Act::kTerminate, {}, "the store's process has ended"};
  if (failed) {
    const auto limit =
        now_seen.ranks[static_cast<std::size_t>(*failed)]->when + policy.survivor_grace;
    return now < limit ? Decision{Act::kWait, limit}
                       : Decision{Act::kTerminate, {}, "another rank has failed"};
  }
  return {};
}

bool is_consequence(const RankEnd& end) {
  const auto is_one = [&](Errc code) {
    return (!end.status.signaled && end.status.value == exit_code(code)) ||
           (end.cause && end.cause->code == code);
  };
  const bool waited = end.cause && end.cause->code == Errc::kTimeout && end.cause->peer >= 0;
  return end.told || waited || is_one(Errc::kPeerLost) || is_one(Errc::kAborted);
}

std::optional<int> first_failure(const Situation& situation) {
  std::optional<int> first;
  const auto order = [&](int rank) {
    const RankEnd& end = *situation.ranks[static_cast<std::size_t>(rank)];
    return std::make_tuple(is_consequence(end), end.told, end.when, !end.status.signaled);
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
  const Blame itself{How::kFailed, *first, -1};
  const RankEnd& end = *situation.ranks[static_cast<std::size_t>(*first)];
  if (!is_consequence(end) || end.told) return itself;
  if (!situation.stopped.empty()) return Blame{How::kStopped, *situation.stopped.begin(), *first};
  std::set<int> seen;
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
