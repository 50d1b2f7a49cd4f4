// A rule around a center (center.h).
//
// With a bound s on the staleness, a worker waits until the slowest one is at most s exchanges
// behind (stale synchronous parallel: Ho and others 2013). Below 0, nobody waits. The clocks are
// the numbers of steps. Workers that take batches when they are ready have the numbers of their
// batches. So a worker that takes fewer does not fall behind for good: its next batch is a new one.
#pragma once

#include <memory>
#include <utility>

#include "weft/base/error.h"
#include "weft/strategy/center.h"
#include "weft/strategy/internal/asynchronous_rule.h"

namespace weft::strategy::internal {

class CenterRule : public AsynchronousRule {
 public:
  CenterRule(const Strategy& strategy, Part part)
      : AsynchronousRule(strategy, std::move(part)), bound_(strategy.staleness * period()) {
    const MakeCenter& given = this->part().make_center;
    const at::Tensor like = weights().zeros();
    center_ = given ? given(this->part().workers, like) : shared_center(this->part().workers, like);
    if (size() > 1 && center_->codec() != strategy.codec) {
      throw Error(Errc::kBadConfig,
                  given ? "strategy.codec = \"" + strategy.codec + "\", and the center's is \"" +
                              center_->codec() + "\"; both must be the same"
                        : "strategy.codec: the center is in the memory of this host, so nothing "
                          "is sent; leave it at \"none\", or use weft train --servers");
    }
    values_ = center_->in_place();
    is_here_ = values_.defined();
    if (!is_here_) values_ = weights().zeros();
    add_state("center", values_);
  }

  State state() override {
    if (!is_here_) center_->read(values_);
    return AsynchronousRule::state();
  }
  void take_restored() override {
    if (!is_here_) center_->reset(&values_);
  }

  void begin(std::int64_t step) override {
    missed_ = unseen();
    center_->reset(nullptr);
    first_ = step;
    last_ = seen_ = own_ = 0;
  }
  void leave() override { center_->leave(); }

 protected:
  void start() override {
    AsynchronousRule::start();
    const at::Tensor first = weights().read();
    center_->reset(&first);
    first_ = last_ = seen_ = own_ = missed_ = 0;
  }

  // An exchange adds once and pulls once, in any order, after this. With a bound, waits for those
  // who are still in an exchange that came before.
  void begin_exchange(const Step& step) {
    add_staleness(unseen());
    missed_ = 0;
    if (bound_ >= 0) center_->wait_for_exchanges(last_ - bound_);
    last_ = step.number - first_;
  }
  void pull(const at::Tensor& out) {
    seen_ = center_->additions();
    own_ = 0;
    center_->pull(0, out);
    center_->advance(Center::Clock::kPulled, last_);
  }
  void add(const at::Tensor& change) {
    center_->add(0, change);
    center_->advance(Center::Clock::kAdded, last_);
    own_ = 1;
  }
  // Between the two, with a bound: waits until the slowest worker has done the first, too.
  void wait_for_all(Center::Clock first) {
    if (bound_ >= 0) center_->wait_for_all(first, last_ - bound_);
  }
  Center& center() { return *center_; }

 private:
  at::Tensor result_weights() override { return center_->snapshot(); }

  // Exchanges of other workers since this one has read the center.
  std::int64_t unseen() const { return missed_ + center_->additions() - seen_ - own_; }

  const std::int64_t bound_;  // in steps
  std::unique_ptr<Center> center_;
  at::Tensor values_;        // of the center: in place, or a copy for checkpoints
  bool is_here_ = false;     // in place
  std::int64_t first_ = 0;   // step of the last begin()
  std::int64_t last_ = 0;    // step of the last exchange, counted from there
  std::int64_t seen_ = 0;    // additions of all workers at the last pull
  std::int64_t own_ = 0;     // additions of this worker since then
  std::int64_t missed_ = 0;  // additions of others that begin() has taken off the clocks
};

}  // namespace weft::strategy::internal
