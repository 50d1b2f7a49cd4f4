// Ranks as threads of which one runs at a time, so that a run is decided by what they do and not by
// the machine.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <vector>

namespace weft::net::sim::internal {

// Ends a rank's thread from within wait(). No std::exception: what catches errors lets it through.
struct Ended {};

class Scheduler {
 public:
  explicit Scheduler(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  // Runs body(rank) for every rank and returns when all have ended. `idle` is called while every
  // rank waits: it lets something happen that wakes one, or gives false where nothing can; then all
  // are ended. `body` throws nothing but Ended.
  void run(const std::function<void(int)>& body, const std::function<bool()>& idle);

  // By a rank that runs: lets the others run until it has been woken.
  void wait(int rank);
  // Anybody. The rank goes on when its turn comes.
  void wake(int rank);
  // The rank ends at its next wait(), which is now where it waits.
  void end(int rank);
  bool ended(int rank) const { return ranks_[static_cast<std::size_t>(rank)].ended; }

 private:
  struct Rank {
    std::unique_ptr<std::binary_semaphore> turn = std::make_unique<std::binary_semaphore>(0);
    bool waits = false;
    bool ended = false;  // its thread is over, or will be at its next wait
    bool over = false;   // its thread is over
  };

  void give_turn(int rank);

  // All of it belongs to whoever runs: a rank between its turns, else run().
  std::vector<Rank> ranks_;
  std::deque<int> ready_;
  std::binary_semaphore back_{0};
};

}  // namespace weft::net::sim::internal
