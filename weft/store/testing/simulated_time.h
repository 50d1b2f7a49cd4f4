// For tests: virtual time, as a queue of events.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "weft/store/internal/raft_options.h"

namespace weft::store {

class SimulatedTime {
 public:
  using Time = internal::Time;
  using Event = std::function<void()>;

  Time now() const { return now_; }
  void after(Time delay, Event event) {
    events_.push({now_ + delay, order_++, std::make_shared<Event>(std::move(event))});
  }
  // Runs events until then, or until `done` is true.
  void run_until(Time end, const std::function<bool()>& done = {}) {
    while (!events_.empty() && events_.top().at <= end && !(done && done())) {
      const Scheduled next = events_.top();
      events_.pop();
      now_ = next.at;
      (*next.event)();
    }
    if (!done || !done()) now_ = std::max(now_, end);
  }

 private:
  struct Scheduled {
    Time at;
    std::uint64_t order;
    std::shared_ptr<Event> event;
    bool operator<(const Scheduled& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  Time now_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Scheduled> events_;
};

}  // namespace weft::store
