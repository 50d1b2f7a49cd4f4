// Asynchronous rules around a center in the memory of a host. No worker waits for another one,
// except for a chunk that it is changing, and for the slowest one where staleness is bounded.
//
// downpour: a worker adds what it has learned since its last exchange, and goes on from the center.
//
//   center = center + lr / workers * (x_i - read_i),   x_i = read_i = center
//
// Dean and others: Large scale distributed deep networks, 2012. There lr is the number of workers;
// here 1 is the default, which keeps the effective learning rate of synchronous training. With
// period 1 it is asynchronous SGD on shared weights, as in Hogwild! (Niu and others 2011,
// arXiv:1106.5730), with a lock for each chunk, so that dense updates are not lost. With staleness
// s it is stale synchronous parallel (Ho and others 2013); s = 0 is synchronous training.
//
// easgd_async: elastic averaging, each worker at its own time.
//
//   d = beta / workers * (x_i - center),   x_i = x_i - d,   center = center + d
//
// Zhang, Choromanska and LeCun 2015 (arXiv:1412.6651), algorithm 1; with momentum in the workers
// their EAMSGD, algorithm 2.
//
// Sends: nothing between hosts. Each exchange reads and writes the vector once in shared memory.
// Limits: one host. A result depends on who comes first, so no two runs have the same bits; with
// staleness 0 they differ by rounding. Changes that were computed from old weights slow training
// down, the more the more workers there are and the larger the learning rate and the momentum are.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/center.h"
#include "weft/strategy/internal/flat_rule.h"

namespace weft::strategy::internal {
namespace {

class CenterRule : public FlatRule {
 public:
  CenterRule(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)),
        center_(this->part().workers, weights().zeros(), strategy.staleness) {
    keep("center", center_.values());
  }

 protected:
  Center& center() { return center_; }

  void start() override {
    center_.meet();
    if (part().workers.rank() == 0) center_.values().copy_(weights().read());
    center_.reset_clocks();
  }

 private:
  at::Tensor result_weights() override {
    center_.meet();
    at::Tensor result = center_.values().clone();
    center_.meet();
    return result;
  }

  Center center_;
};

class Downpour final : public CenterRule {
 public:
  Downpour(const Strategy& strategy, Part part)
      : CenterRule(strategy, std::move(part)),
        scale_((strategy.lr < 0 ? 1.0 : strategy.lr) / size()),
        read_(weights().zeros()) {}

  State state() override {
    State state = FlatRule::state();
    state.own = {read_};
    return state;
  }
  void reset_own() override { read_.copy_(weights().read()); }

 private:
  void start() override {
    CenterRule::start();
    read_.copy_(weights().read());
  }

  void exchange(const Step&) override {
    at::Tensor x = weights().read();
    at::Tensor change = (x - read_).mul_(scale_);
    const auto read = [](at::Tensor mine, const at::Tensor& all) { mine.copy_(all); };
    const auto push = [&](at::Tensor mine, at::Tensor all) {
      all.add_(mine);
      read(mine, all);
    };
    center().exchange(change, push, read);
    read_.copy_(change);
    weights().write(read_);
  }

  const double scale_;
  at::Tensor read_;  // the center as this worker has read it
};

class EasgdAsync final : public CenterRule {
 public:
  EasgdAsync(const Strategy& strategy, Part part)
      : CenterRule(strategy, std::move(part)), alpha_(strategy.beta / size()) {}

 private:
  void exchange(const Step&) override {
    at::Tensor x = weights().read();
    center().exchange(x, [&](at::Tensor mine, at::Tensor all) {
      const at::Tensor pull = (mine - all).mul_(alpha_);
      mine.sub_(pull);
      all.add_(pull);
    });
    weights().write(x);
  }

  const double alpha_;
};

}  // namespace

std::unique_ptr<Rule> downpour(const Strategy& strategy, Part part) {
  return std::make_unique<Downpour>(strategy, std::move(part));
}

std::unique_ptr<Rule> easgd_async(const Strategy& strategy, Part part) {
  return std::make_unique<EasgdAsync>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
