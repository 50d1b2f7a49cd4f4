#include "weft/launch/supervision.h"

#include <algorithm>
#include <tuple>

#include "weft/base/error.h"

namespace weft::launch {

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
  if (now_seen.store_lost) return {Act::kTerminate, {}, "the store's process has ended"};
  if (failed) {
    const auto limit =
        now_seen.ranks[static_cast<std::size_t>(*failed)]->when + policy.survivor_grace;
    return now < limit ? Decision{Act::kWait, limit}
                       : Decision{Act::kTerminate, {}, "another rank has failed"};
  }
  return {};
}

bool is_consequence(const RankEnd& end, const Situation& situation) {
  const int code = end.status.signaled ? 0 : end.status.value;
  const bool told = situation.stop_sent && end.when >= *situation.stop_sent;
  return told || code == exit_code(Errc::kPeerLost) || code == exit_code(Errc::kAborted);
}

std::optional<int> first_failure(const Situation& situation) {
  std::optional<int> first;
  const auto order = [&](int rank) {
    const RankEnd& end = *situation.ranks[static_cast<std::size_t>(rank)];
    return std::make_tuple(is_consequence(end, situation), end.when, !end.status.signaled);
  };
  for (int rank = 0; rank < static_cast<int>(situation.ranks.size()); ++rank) {
    const auto& end = situation.ranks[static_cast<std::size_t>(rank)];
    if (!end || end->status.ok()) continue;
    if (!first || order(rank) < order(*first)) first = rank;
  }
  return first;
}

}  // namespace weft::launch
