// Runs ranks as threads, one at a time, so that a run does not depend on the machine.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <vector>

namespace weft::net::sim::internal {

// Ends a rank's thread from within wait(). Not a std::exception, so error handlers do not catch it.
struct Ended {};

class Scheduler {
 public:
  explicit Scheduler(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  // Runs body(rank) for every rank and returns when all have ended. Calls `idle` while every rank
  // waits: it runs an event that may wake one, or returns false if there is none; then all ranks
  // are ended. `body` only throws Ended.
  void run(const std::function<void(int)>& body, const std::function<bool()>& idle);

  // Called by the running rank: lets others run until it is woken.
  void wait(int rank);
  // Any caller. The rank continues when it is its turn.
  void wake(int rank);
  // Ends the rank at its next wait(), or at its current one.
  void end(int rank);
  bool ended(int rank) const { return ranks_[static_cast<std::size_t>(rank)].ended; }

 private:
  struct Rank {
    std::unique_ptr<std::binary_semaphore> turn = std::make_unique<std::binary_semaphore>(0);
    bool waits = false;
    bool ended = false;  // its thread has ended, or will end at its next wait
    bool over = false;   // its thread is over
  };

  void give_turn(int rank);

  // Owned by the running thread: a rank during its turn, otherwise run().
  std::vector<Rank> ranks_;
  std::deque<int> ready_;
  std::binary_semaphore back_{0};
};

}  // namespace weft::net::sim::internal
