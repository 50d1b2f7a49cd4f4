#include "weft/launch/internal/departure.h"

#include <algorithm>

#include "weft/base/text/numbers.h"

namespace weft::launch::internal {
namespace {

std::string seconds(std::chrono::milliseconds time) {
  return formatted("%.3g s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace

Time end_of_grace(const Departure& departure) {
  constexpr std::chrono::milliseconds kMaxReserve = std::chrono::seconds(2);
  return departure.since + departure.grace - std::min(departure.grace / 10, kMaxReserve);
}

std::string line_of(const Leave& leave) {
  const std::string grace = "the grace period of " + seconds(leave.asked.grace);
  const std::string newest =
      leave.newest.empty() ? "there is no earlier one" : "the newest one is " + leave.newest;
  if (!leave.trained) return leave.killed ? "the job did not end within " + grace : "";
  // The ranks may have saved and ended before this node learned of the request, and another node
  // may have killed its ranks earlier, so that those of this node ended by themselves.
  const bool by_membership = leave.asked.by_membership;
  const auto earlier = std::min<std::chrono::milliseconds>(kMembershipDelay, leave.asked.grace / 5);
  const bool too_late =
      leave.killed || (by_membership && leave.ended >= end_of_grace(leave.asked) - earlier);
  const Time since =
      leave.asked.since - (by_membership && !too_late ? kMembershipDelay : Time::duration{});
  const bool heeded = leave.heeded || !leave.killed || by_membership;
  if (!leave.newest.empty() && leave.saved >= since && heeded) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(leave.saved - leave.asked.since, Time::duration{}));
    return "the checkpoint " + leave.newest + " was complete " + seconds(took) + " after " +
           leave.asked.why;
  }
  if (leave.asked.by_program) return "";
  if (too_late) return "no checkpoint fit into " + grace + "; " + newest;
  return "no checkpoint was written after " + leave.asked.why + "; " + newest;
}

}  // namespace weft::launch::internal
