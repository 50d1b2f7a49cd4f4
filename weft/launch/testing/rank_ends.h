// Test helpers: ends of ranks, and the situations of a launcher.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/launch/internal/one_node.h"
#include "weft/launch/supervision.h"

namespace weft::launch {

inline constexpr Time kStart{};
inline RankEnd exited(int code, std::chrono::milliseconds at) {
  return {{false, code}, kStart + at};
}
inline RankEnd killed(int signal, std::chrono::milliseconds at) {
  return {{true, signal}, kStart + at};
}
// A rank that ended because of an error of weft: it waited for `peer`.
inline RankEnd waited(Errc code, int peer, std::chrono::milliseconds at, ExitStatus status) {
  return {status, kStart + at, Cause{std::string(to_string(code)) + " text", code, peer}};
}
inline RankEnd told(RankEnd end) {
  end.told = true;
  return end;
}

inline Situation situation(std::vector<std::optional<RankEnd>> ranks) {
  Situation result;
  internal::begin_attempt(result, static_cast<int>(ranks.size()));
  result.ranks = std::move(ranks);
  return result;
}

// A process was started in place of a lost rank, and has not joined the others.
inline void replaced(Situation& seen, int local) {
  internal::commit(seen, {.act = Act::kReplace, .rank = local});
  --seen.job.replacements;
}
// The rank was started in addition.
inline void added(Situation& seen, int local, RankPhase phase = RankPhase::kStarting) {
  seen.ranks.resize(std::max(seen.ranks.size(), static_cast<std::size_t>(local) + 1));
  internal::commit(seen, {.act = Act::kGrow, .rank = local});
  seen.newcomers[local] = phase;
}
inline void done_without(Situation& seen, int local) {
  internal::commit(seen, {.act = Act::kGoOnWithout, .rank = local});
}

}  // namespace weft::launch
