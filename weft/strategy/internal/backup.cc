// Synchronous training with backup workers: a step takes the gradients of the workers that are
// ready first, and leaves out those of the last `backup` ones.
//
//   round r:   worker i computes its step from center_r, and offers c_i = x_i - center_r
//              center_{r+1} = center_r + mean of the first (workers - backup) offers
//              all take center_{r+1}; an offer that comes later is left out
//
// Chen, Pan, Monga, Bengio and Jozefowicz: Revisiting distributed synchronous SGD, 2016
// (arXiv:1604.00981), algorithms 3 and 4. x has the weights and the state of the worker's
// optimizer. A step of SGD with momentum is linear in both, so the mean of the offers is the step
// by the mean of the gradients that count. A worker that is late goes on from the newest center,
// momentum included, so nothing of its gradient is left.
//
// Sends: nothing between hosts. Each step writes and reads weights and optimizer state once.
// Limits: one host, and workers of one rank. Samples of steps that are left out count for nothing
// in this epoch. For optimizers that are not linear in the gradient (Adam), the state is the mean
// of the workers' states. Which worker is late depends on time, so no two runs have the same bits.
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "weft/base/error.h"
#include "weft/strategy/internal/asynchronous_rule.h"
#include "weft/strategy/internal/shared_memory.h"

namespace weft::strategy::internal {
namespace {

class Backup final : public AsynchronousRule {
 public:
  Backup(const Strategy& strategy, Part part)
      : AsynchronousRule(strategy, std::move(part)),
        wanted_(size() - strategy.backup),
        count_(weights().count() + optimizer_state().count()),
        memory_(this->part().workers, sizeof(Round) + 2 * weights().zeros().itemsize() *
                                                          static_cast<std::size_t>(count_)),
        round_(*reinterpret_cast<Round*>(memory_.data())) {
    std::byte* const at = memory_.data() + sizeof(Round);
    const auto like = weights().zeros().options();
    center_ = at::from_blob(at, {count_}, like);
    sum_ = at::from_blob(at + center_.nbytes(), {count_}, like);
    read_ = at::zeros({count_}, like);
    add_state("center", weights_of(center_));
  }

  // The optimizer state of the center is in a checkpoint once, by worker 0.
  State state() override {
    State state = AsynchronousRule::state();
    if (me() == 0 && count_ > weights().count()) state.own.push_back(optimizer_of(center_));
    return state;
  }
  void reset_own() override {
    const at::NoGradGuard no_grad;
    AsynchronousRule::reset_own();
    if (me() == 0) optimizer_of(center_).copy_(optimizer_state().read());
  }
  void begin(std::int64_t) override {
    meet();
    round_.active.store(size());
    meet();
    take_center();
  }
  void leave() override {
    {
      const SharedMemory::Hold hold(memory_, round_.lock);
      round_.active.fetch_sub(1);
      close_if_complete();
    }
    memory_.notify();
  }
  std::int64_t dropped_steps() const override { return dropped_; }

 private:
  // In shared memory. The lock guards everything.
  struct Round {
    SharedMemory::Lock lock;
    std::atomic<std::int64_t> number;  // of the round
    std::atomic<std::int64_t> offers;  // in `sum`
    std::atomic<std::int64_t> active;  // workers that take part
  };

  int me() const { return part().workers.rank(); }
  void meet() const { part().workers.barrier(); }
  Flat optimizer_state() const {
    return Flat(part().optimizer_state ? part().optimizer_state() : std::vector<at::Tensor>{});
  }
  at::Tensor weights_of(const at::Tensor& vector) const {
    return vector.narrow(0, 0, weights().count());
  }
  at::Tensor optimizer_of(const at::Tensor& vector) const {
    return vector.narrow(0, weights().count(), count_ - weights().count());
  }
  at::Tensor read_all() const {
    return at::cat({weights().read(), optimizer_state().read().to(center_.scalar_type())});
  }

  void start() override {
    AsynchronousRule::start();
    meet();
    if (me() == 0) {
      center_.copy_(read_all());
      sum_.zero_();
      round_.offers.store(0);
      round_.active.store(size());
    }
    meet();
    take_center();
  }

  void exchange(const Step&) override {
    const at::Tensor change = read_all().sub_(read_);
    bool waits = false;
    {
      const SharedMemory::Hold hold(memory_, round_.lock);
      add_staleness(round_.number.load() - number_);
      if (round_.number.load() == number_) {
        sum_.add_(change);
        round_.offers.fetch_add(1);
        close_if_complete();
        waits = round_.number.load() == number_;
      } else {
        ++dropped_;
      }
    }
    memory_.notify();
    memory_.count_moved(change.nbytes());
    if (waits) {
      memory_.wait([&] { return round_.number.load() != number_; }, [] { return -1; },
                   "wait for the gradients of the first workers");
    }
    take_center();
  }

  // Ends the round if all that are wanted, or all that take part, have offered. With the lock.
  void close_if_complete() {
    const std::int64_t offers = round_.offers.load(),
                       wanted = std::max<std::int64_t>(
                           1, std::min<std::int64_t>(wanted_, round_.active.load()));
    if (offers < wanted) return;
    center_.add_(sum_, 1.0 / static_cast<double>(offers));
    sum_.zero_();
    round_.offers.store(0);
    round_.number.fetch_add(1);
  }

  void take_center() {
    {
      const SharedMemory::Hold hold(memory_, round_.lock);
      read_.copy_(center_);
      number_ = round_.number.load();
    }
    memory_.notify();
    memory_.count_moved(read_.nbytes());
    weights().write(weights_of(read_));
    const Flat optimizer = optimizer_state();
    if (optimizer.count() > 0) optimizer.write(optimizer_of(read_));
  }

  at::Tensor result_weights() override {
    meet();
    at::Tensor result = weights_of(center_).clone();
    meet();
    return result;
  }

  const std::int64_t wanted_, count_;
  const SharedMemory memory_;
  Round& round_;
  at::Tensor center_, sum_;  // [count]: weights, then optimizer state
  at::Tensor read_;          // the center as this worker has read it
  std::int64_t number_ = 0;  // of the round that it is of
  std::int64_t dropped_ = 0;
};

}  // namespace

std::unique_ptr<Rule> backup(const Strategy& strategy, Part part) {
  WEFT_REQUIRE(part.workers.size() == part.world.size(),
               "strategy.backup needs workers of one rank each: use parallel.dp only");
  return std::make_unique<Backup>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
