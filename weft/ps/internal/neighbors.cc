#include "weft/ps/internal/neighbors.h"

#include <algorithm>

namespace weft::ps::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kReceivesState = 30s;

}  // namespace

void Neighbors::adopt(const Replica& replica, Clock::time_point now) {
  const auto notice = [&](Neighbor& known, const std::optional<Member>& member) {
    if (known.member != member) known = {member, now};
  };
  notice(previous_, replica.previous());
  notice(next_, replica.next());
}

void Neighbors::hear(const Replica& replica, const ChainMessage& message, Clock::time_point now) {
  if (!(message.to == replica.me())) return;
  const auto heard = now + std::chrono::milliseconds(message.pause_ms);
  if (message.from == replica.previous()) previous_.heard = heard;
  if (message.from == replica.next()) next_.heard = heard;
}

void Neighbors::forgive(Clock::duration busy, Clock::time_point now) {
  for (Neighbor* const one : {&previous_, &next_})
    if (one->heard < now) one->heard = std::min(one->heard + busy, now);
}

bool Neighbors::previous_is_silent(Clock::time_point now, Clock::duration timeout) const {
  return previous_.member && now - previous_.heard > timeout;
}

bool Neighbors::next_is_silent(const Replica& replica, Clock::time_point now,
                               Clock::duration timeout) const {
  if (replica.next_receives_state()) timeout = std::max<Clock::duration>(timeout, kReceivesState);
  return next_.member && now - next_.heard > timeout;
}

}  // namespace weft::ps::internal
