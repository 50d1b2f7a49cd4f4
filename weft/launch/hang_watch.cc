// A look goes over the ranks twice. First it collects evidence on each one; then, with all waits
// known, it judges.
//
//   follow()     a new heartbeat ends the evidence, and what it took teaches the limits (end_gap())
//   sample()     state and processor time of the thread, only if the rank has been quiet for kQuiet
//   waits_of()   one edge for each rank that waits; the rank at the end of a chain is awaited
//   judge()      compares the evidence with the limits
//
// Threads of ranks that make progress are never read, which keeps a look cheap. So the evidence
// begins kQuiet after the last sign of life. Where the two are compared, kQuiet makes up for the
// difference.
//
// `held` and `asleep` must hold without a break: one sample that differs, or a thread that has used
// more than 5 % of a processor, begins them again. For the launcher's thread, like all of the
// class.
#include "weft/launch/hang_watch.h"

#include <algorithm>
#include <set>

namespace weft::launch {
namespace {

using observe::Activity;
using observe::RankView;
using How = Hang::How;

// A launcher that has not looked for so long was stopped itself, or got no processor.
constexpr Nanos kMissedLooks = std::chrono::milliseconds(700);
// A sleeping thread may use so much of a processor, to look whether it is needed.
constexpr int kSleepShare = 20;

bool may_take_long(Activity activity) {
  switch (activity) {
    case Activity::kForward:
    case Activity::kBackward:
    case Activity::kCommunication:
    case Activity::kOptimizer:
    case Activity::kUnknown: return false;
    default: return true;
  }
}

// Local number of a rank of the job; -1 for a rank of another node.
int local_of(const std::vector<RankView>& views, std::int64_t rank) {
  for (std::size_t i = 0; i < views.size(); ++i)
    if (views[i].rank == rank) return static_cast<int>(i);
  return -1;
}

const RankView& at(const std::vector<RankView>& views, int local) {
  return views[static_cast<std::size_t>(local)];
}

// A process that is held is looked at itself, whatever it waited for.
bool waits_for_peer(const RankView& view) {
  const bool is_held = view.thread && view.thread->is_held();
  const auto& operation = view.operation;
  return view.pid != 0 && operation.waits() && operation.peer >= 0 && operation.peer != view.rank &&
         !is_held;
}

void set_waiting(Hang& hang, const RankView& view) {
  hang.waiting = view.rank;
  hang.operation = view.operation;
}

}  // namespace

void UsualTime::add(Nanos took) {
  times_.push_back(took);
  if (times_.size() > kKept) times_.pop_front();
}

Nanos UsualTime::limit(Nanos least) const {
  Nanos longest{}, second{};
  for (const Nanos time : times_) {
    second = std::max(second, std::min(time, longest));
    longest = std::max(longest, time);
  }
  return std::max(least, 4 * second);
}

bool Hang::is_certain() const {
  switch (how) {
    case How::kHeld: return lasts >= HangWatch::kHeldCertain;
    case How::kAsleep:
    case How::kBusy: return lasts >= 2 * limit;
    default: return false;
  }
}

HangWatch::Seen HangWatch::look(Nanos now, std::vector<RankView>& views,
                                const std::function<void(RankView&)>& read) {
  Seen seen;
  tracks_.resize(views.size());
  const bool missed = last_look_ && now - *last_look_ > kMissedLooks;
  last_look_ = now;
  for (std::size_t i = 0; i < views.size(); ++i) {
    Track& track = tracks_[i];
    // The launcher may have been stopped together with its ranks: they are not to blame.
    if (missed) {
      track.since = now;
      track.first_cpu = track.held_since = track.asleep_since = std::nullopt;
    }
    follow(track, views[i], now, seen);
    if (views[i].pid == 0 || now - track.since < kQuiet) continue;
    read(views[i]);
    if (views[i].thread) sample(track, *views[i].thread, now);
  }
  const Waits waits = waits_of(views);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const int local = static_cast<int>(i);
    Track& track = tracks_[i];
    track.last = views[i];
    const auto awaited = waits.local.find(local);
    const bool is_awaited = awaited != waits.local.end();
    auto hang =
        judge(track, is_awaited ? std::optional(now - awaited->second.since) : std::nullopt, now);
    if (!hang) continue;
    hang->local = local;
    hang->rank = views[i].rank;
    if (is_awaited) set_waiting(*hang, views[static_cast<std::size_t>(awaited->second.waiting)]);
    hang->is_new = !track.named || track.named->how != hang->how;
    track.named = hang;
    seen.hangs.push_back(*hang);
  }
  name_waits(How::kElsewhere, waits.elsewhere, views, now, seen);
  name_waits(How::kCycle, waits.cycles, views, now, seen);
  return seen;
}

void HangWatch::name_waits(How how, const std::map<int, Awaited>& found, const Views& views,
                           Nanos now, Seen& seen) {
  std::erase_if(named_waits_, [&](const auto& named) {
    return named.first == how && !found.contains(named.second);
  });
  for (const auto& [key, awaited] : found) {
    Hang hang{.how = how, .lasts = now - awaited.since, .limit = usual_wait_.limit(kMinWait)};
    if (hang.lasts < hang.limit) continue;
    if (how == How::kCycle) hang.local = key;
    hang.rank = how == How::kCycle ? views[static_cast<std::size_t>(key)].rank : key;
    set_waiting(hang, views[static_cast<std::size_t>(awaited.waiting)]);
    hang.is_new = named_waits_.emplace(how, key).second;
    seen.hangs.push_back(hang);
  }
}

// Notices whether the rank has given a sign of life since the last look.
void HangWatch::follow(Track& track, const RankView& view, Nanos now, Seen& seen) {
  const bool same_process = view.pid == track.last.pid;
  if (same_process && view.heartbeat == track.last.heartbeat) return;
  if (same_process) {
    end_gap(track, now);
    if (track.named) {
      track.named->lasts = now - track.since;
      seen.resumed.push_back(*track.named);
    }
  }
  const std::int64_t first = same_process ? track.first_step : -1;
  track = Track{};
  track.since = now;
  track.first_step = first >= 0 ? first : view.standing.step > 0 ? view.standing.step : -1;
}

// Learns from a time without a sign of life that has ended.
void HangWatch::end_gap(const Track& track, Nanos now) {
  const RankView& before = track.last;
  if (before.operation.waits()) {
    // It waited for another rank. This says how long waits take, and nothing of its own work.
    const Nanos waited = now - Nanos(before.operation.waits_since);
    if (waited >= kQuiet) usual_wait_.add(waited);
    return;
  }
  if (!track.first_cpu || may_take_long(before.standing.activity)) return;
  if (track.asleep_since) usual_sleep_.add(now - *track.asleep_since);
  // The first kQuiet was not read, and counts as busy.
  usual_cpu_.add(track.cpu - *track.first_cpu + std::min(kQuiet, now - track.since));
}

void HangWatch::sample(Track& track, const observe::ThreadState& state, Nanos now) {
  const Nanos used = track.first_cpu ? state.cpu - track.cpu : Nanos(0);
  if (!track.first_cpu) track.first_cpu = state.cpu;
  track.cpu = state.cpu;
  const bool used_much = used > kPeriod / kSleepShare;
  const auto update = [&](std::optional<Nanos>& since, bool holds) {
    if (!holds || used_much) since.reset();
    if (holds && !since) since = now;
  };
  update(track.held_since, state.is_held());
  update(track.asleep_since, state.is_asleep());
}

HangWatch::Waits HangWatch::waits_of(const Views& views) {
  Waits waits;
  const auto next_of = [&](int local) { return local_of(views, at(views, local).operation.peer); };
  for (int local = 0; local < static_cast<int>(views.size()); ++local) {
    const RankView& view = at(views, local);
    if (!waits_for_peer(view)) continue;
    const auto add = [&](std::map<int, Awaited>& to, int key) {
      const Nanos since(view.operation.waits_since);
      const auto [known, is_new] = to.try_emplace(key, Awaited{since, local});
      if (!is_new && since < known->second.since) known->second = {since, local};
    };
    const int next = next_of(local);
    if (next < 0) {
      add(waits.elsewhere, static_cast<int>(view.operation.peer));
    } else if (!waits_for_peer(at(views, next))) {
      add(waits.local, next);
    } else {
      // Is this rank in a cycle? The chain may lead into one that it is not part of, so the number
      // of steps is limited.
      int lowest = local, here = next;
      for (std::size_t steps = 0;
           steps < views.size() && here >= 0 && here != local && waits_for_peer(at(views, here));
           ++steps) {
        lowest = std::min(lowest, here);
        here = next_of(here);
      }
      if (here == local) add(waits.cycles, lowest);
    }
  }
  return waits;
}

std::optional<Hang> HangWatch::judge(const Track& track, std::optional<Nanos> waited,
                                     Nanos now) const {
  const Nanos lasts = now - track.since;
  if (track.held_since) {
    const Nanos held = now - *track.held_since, limit = waited >= kAwaited ? kHeld : kHeldUnawaited;
    if (held < limit) return std::nullopt;
    return Hang{.how = How::kHeld, .lasts = held, .limit = limit};
  }
  if (!waited || *waited < kAwaited || !track.first_cpu) return std::nullopt;
  const observe::Standing& standing = track.last.standing;
  if (may_take_long(standing.activity)) {
    const Nanos limit = standing.activity == Activity::kRecovery ? kSlowRecovery : kSlow;
    if (*waited < limit) return std::nullopt;
    return Hang{.how = How::kSlow, .lasts = lasts, .limit = limit};
  }
  const bool at_start = standing.activity == Activity::kUnknown || track.first_step < 0 ||
                        standing.step - track.first_step < kFirstSteps;
  const Nanos least = at_start ? kMinAtStart : kLeast;
  if (track.asleep_since) {
    const Nanos limit = usual_sleep_.limit(least);
    if (now - *track.asleep_since < limit - kQuiet || lasts < limit) return std::nullopt;
    return Hang{.how = How::kAsleep, .lasts = lasts, .limit = limit};
  }
  const Nanos limit = usual_cpu_.limit(least), used = track.cpu - *track.first_cpu + kQuiet;
  if (used < limit || lasts < limit) return std::nullopt;
  return Hang{.how = How::kBusy, .lasts = lasts, .limit = limit};
}

}  // namespace weft::launch
