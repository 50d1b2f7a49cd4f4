// Finds ranks that hang, from what the launcher sees of its ranks at each look. Pure: the clock and
// the states of the processes are arguments.
//
// A rank is suspect while its record does not change, another rank waits for it, and it waits for
// no other one itself. So the end of a chain of waiting ranks is named. It hangs in one of three
// ways:
//
//   held     a signal, a debugger or a control group has stopped its process, without a break
//   asleep   its thread has slept in the kernel all the time: a deadlock, or a call that does not
//            return
//   busy     its thread has used more processor time than usual: an endless loop. Processor time
//            counts, so that a rank that gets 20 % of a processor does not hang
//
// Limits adapt to the job: four times the second longest such time that was seen to end, and at
// least 1.5 s. A rank that loads data, evaluates, saves a checkpoint, starts or recovers may take
// long: it is slow, not hanging, unless it is held. In the first steps the limits are longer.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "weft/observe/position/table.h"

namespace weft::launch {

using Nanos = std::chrono::nanoseconds;

// How long something usually takes at most.
class UsualTime {
 public:
  static constexpr std::size_t kKept = 256;

  void add(Nanos took);
  // Four times the second longest of the last kKept times, since one alone may be an accident.
  Nanos limit(Nanos least) const;

 private:
  std::deque<Nanos> times_;
};

struct Hang {
  enum class How {
    kHeld,
    kAsleep,
    kBusy,
    kSlow,       // in an activity that may take long
    kElsewhere,  // the awaited rank is not of this node
    kCycle,      // ranks wait for each other
  };
  How how = How::kHeld;
  int local = -1;                     // Local number. kElsewhere: -1.
  int rank = -1;                      // Rank of the job.
  int waiting = -1;                   // The rank of the job that waits for it. -1: none.
  observe::Operation operation = {};  // That `waiting` is in.
  Nanos lasts{};                      // Since its last sign of life.
  Nanos limit{};                      // It is named if it lasts longer.
  bool is_new = false;                // It has not been named before.
  // It has lasted long enough to end the rank because of it.
  bool is_certain() const;
};

class HangWatch {
 public:
  static constexpr Nanos kPeriod = std::chrono::milliseconds(100);  // Between two looks.
  // A record that has not changed for so long is looked at closer.
  static constexpr Nanos kQuiet = std::chrono::milliseconds(300);
  static constexpr Nanos kHeld = std::chrono::milliseconds(1000);
  static constexpr Nanos kHeldUnawaited = std::chrono::milliseconds(1700);
  static constexpr Nanos kHeldCertain = std::chrono::milliseconds(1500);
  static constexpr Nanos kLeast = std::chrono::milliseconds(1500);
  static constexpr Nanos kMinAtStart = std::chrono::seconds(10);  // Also without steps.
  static constexpr Nanos kSlow = std::chrono::seconds(30);
  static constexpr Nanos kSlowRecovery = std::chrono::seconds(10);
  static constexpr Nanos kMinWait = std::chrono::seconds(10);  // kElsewhere, kCycle.
  static constexpr Nanos kAwaited = std::chrono::milliseconds(200);
  static constexpr int kFirstSteps = 10;

  struct Seen {
    std::vector<Hang> hangs;    // All that last.
    std::vector<Hang> resumed;  // Named before; they go on.
  };
  // `views`: by local rank. `read` reads the state of a view's thread (observe::read_thread).
  // `now`: CLOCK_MONOTONIC.
  Seen look(Nanos now, std::vector<observe::RankView>& views,
            const std::function<void(observe::RankView&)>& read);

 private:
  // A rank since its last sign of life.
  struct Track {
    std::int64_t first_step = -1;  // of its process
    observe::RankView last = {};   // at the last look
    Nanos since{};
    std::optional<Nanos> first_cpu;  // processor time when it was first read
    Nanos cpu{};
    std::optional<Nanos> held_since, asleep_since;  // without a break
    std::optional<Hang> named;
  };
  // The rank that has waited longest for another one.
  struct Awaited {
    Nanos since{};
    int waiting = -1;  // local number
  };
  struct Waits {
    std::map<int, Awaited> local;      // by local number of a rank that does not wait itself
    std::map<int, Awaited> elsewhere;  // by rank of the job
    std::map<int, Awaited> cycles;     // by the lowest local number in the cycle
  };
  using Views = std::vector<observe::RankView>;

  void follow(Track& track, const observe::RankView& view, Nanos now, Seen& seen);
  void end_gap(const Track& track, Nanos now);
  static void sample(Track& track, const observe::ThreadState& state, Nanos now);
  static Waits waits_of(const Views& views);
  // Without `local`, `rank` and the wait.
  std::optional<Hang> judge(const Track& track, std::optional<Nanos> waited, Nanos now) const;
  // Names long waits that have no rank of this node at their end.
  void name_waits(Hang::How how, const std::map<int, Awaited>& found, const Views& views, Nanos now,
                  Seen& seen);

  std::vector<Track> tracks_;
  std::set<std::pair<Hang::How, int>> named_waits_;
  std::optional<Nanos> last_look_;
  UsualTime usual_cpu_, usual_sleep_, usual_wait_;
};

}  // namespace weft::launch
