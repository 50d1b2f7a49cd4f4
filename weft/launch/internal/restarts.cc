#include "weft/launch/internal/restarts.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kRanWell = 10s;

}  // namespace

std::chrono::milliseconds restart_pause(int failures) {
  if (failures <= 1) return 0ms;
  return std::min<std::chrono::milliseconds>(50ms * (1 << std::min(failures - 2, 10)), 2s);
}

void Restarts::began(Time now) { started_ = now; }

void Restarts::ended(Time now) {
  failures_ = now - started_ >= kRanWell ? 1 : failures_ + 1;
  again_ = now + restart_pause(failures_);
}

std::optional<Restarts::Time> Restarts::try_start(Time now, const std::function<void()>& start) {
  constexpr auto kLeast = 100ms;
  try {
    start();
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != Errc::kUnavailable) throw;
    began(now);
    ended(now);
    again_ = std::max(again_, now + kLeast);
    return again_;
  }
}

std::optional<Restarts::Time> Restarts::pause(Time now) const {
  return now < again_ ? std::optional(again_) : std::nullopt;
}

}  // namespace weft::launch::internal
