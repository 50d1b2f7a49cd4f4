#include "weft/net/sim/internal/scheduler.h"

#include <algorithm>
#include <thread>

namespace weft::net::sim::internal {

void Scheduler::run(const std::function<void(int)>& body, const std::function<bool()>& idle) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    ready_.push_back(rank);
    threads.emplace_back([this, rank, &body] {
      Rank& me = ranks_[static_cast<std::size_t>(rank)];
      me.turn->acquire();
      try {
        if (!me.ended) body(rank);
      } catch (const Ended&) {
        // The end of the thread was requested.
      }
      me.ended = me.over = true;
      back_.release();
    });
  }
  while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.over; })) {
    if (!ready_.empty()) {
      const int next = ready_.front();
      ready_.pop_front();
      give_turn(next);
    } else if (!idle()) {
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) end(rank);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void Scheduler::give_turn(int rank) {
  Rank& next = ranks_[static_cast<std::size_t>(rank)];
  if (next.over) return;
  next.turn->release();
  back_.acquire();
}

void Scheduler::wait(int rank) {
  Rank& me = ranks_[static_cast<std::size_t>(rank)];
  if (me.ended) throw Ended{};
  me.waits = true;
  back_.release();
  me.turn->acquire();
  if (me.ended) throw Ended{};
}

void Scheduler::wake(int rank) {
  Rank& one = ranks_[static_cast<std::size_t>(rank)];
  if (!one.waits) return;
  one.waits = false;
  ready_.push_back(rank);
}

void Scheduler::end(int rank) {
  ranks_[static_cast<std::size_t>(rank)].ended = true;
  wake(rank);
}

}  // namespace weft::net::sim::internal
