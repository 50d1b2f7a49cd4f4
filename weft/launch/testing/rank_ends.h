// Test helpers: ends of ranks, and the situations of a launcher.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  result.ranks = std::move(ranks);
  return result;
}

}  // namespace weft::launch
