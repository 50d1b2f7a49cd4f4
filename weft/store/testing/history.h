// For tests: what clients asked of a store and were told, and whether it keeps the store's
// promises.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "weft/store/testing/agreement.h"
#include "weft/store/testing/linearizability.h"

namespace weft::store {

// What clients asked and were told.
class History {
 public:
  using Time = internal::Time;

  // A change of the store, or a reading of its revision.
  struct Seen {
    std::int64_t begin, end;
    Revision revision;
    bool changed;
  };
  struct Lease {
    std::string key;
    Time ttl{};
    std::int64_t bound = INT64_MAX;  // when its key was set
    std::int64_t renewed = 0;        // begin of the last renewal that was answered
  };
  struct Wait {
    std::string key;
    std::int64_t begin, end;
  };

  std::map<std::string, std::vector<Operation>> operations;  // by key
  std::vector<Seen> seen;
  std::vector<Wait> timed_out;  // waits that ended without a change
  std::vector<Lease> leases;
  std::uint64_t answered = 0;
  std::uint64_t woken = 0;

  // Throws Violation. `jumps`: of clocks; `calm`: since then all faults are over.
  void check(std::uint64_t jumps, double skew, Time calm) const {
    for (const auto& [key, all] : operations) {
      if (!is_linearizable(all))
        throw Violation("the answers for " + key + " contradict each other");
    }
    check_revisions();
    check_waits(calm);
    for (const Lease& lease : leases) check_lease(lease, jumps, skew);
  }

 private:
  // Later calls see later revisions, and no two changes have the same one.
  void check_revisions() const {
    std::vector<Seen> by_end = seen, by_begin = seen;
    std::sort(by_end.begin(), by_end.end(),
              [](const Seen& a, const Seen& b) { return a.end < b.end; });
    std::sort(by_begin.begin(), by_begin.end(),
              [](const Seen& a, const Seen& b) { return a.begin < b.begin; });
    std::set<Revision> changes;
    Revision highest = 0;
    auto ended = by_end.begin();
    for (const Seen& one : by_begin) {
      for (; ended != by_end.end() && ended->end < one.begin; ++ended)
        highest = std::max(highest, ended->revision);
      if (one.revision < highest || (one.changed && one.revision == highest))
        throw Violation("revision " + std::to_string(one.revision) + " was seen after revision " +
                        std::to_string(highest));
      if (one.changed && !changes.insert(one.revision).second)
        throw Violation("two changes have revision " + std::to_string(one.revision));
    }
  }

  // A wait does not miss a change that was answered well within it.
  void check_waits(Time calm) const {
    const std::int64_t slack = std::chrono::nanoseconds(std::chrono::seconds(1)).count();
    for (const Wait& wait : timed_out) {
      const auto all = operations.find(wait.key);
      if (wait.begin < calm.count() || all == operations.end()) continue;
      for (const Operation& one : all->second) {
        if (one.kind == Operation::Kind::kSet && one.begin > wait.begin && one.has_answer() &&
            one.end < wait.end - slack)
          throw Violation("a wait for " + wait.key + " missed a change");
      }
    }
  }

  // A lease that was kept alive holds its key for its time, up to the stated bound.
  void check_lease(const Lease& lease, std::uint64_t jumps, double skew) const {
    const auto slack = static_cast<std::int64_t>(2 * skew * static_cast<double>(lease.ttl.count()));
    const std::int64_t until =
        lease.renewed + lease.ttl.count() - slack -
        static_cast<std::int64_t>(jumps) * internal::LimitedClock::kMaxStep.count();
    const auto all = operations.find(lease.key);
    if (all == operations.end()) return;
    for (const Operation& one : all->second) {
      if (one.kind == Operation::Kind::kGet && !one.found && one.begin > lease.bound &&
          one.end < until)
        throw Violation("the lease of " + lease.key + " ended too early");
    }
  }
};

}  // namespace weft::store
