#include "weft/train/internal/decisions.h"

#include <ATen/ATen.h>

#include <tuple>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/observe/run/metric_names.h"

namespace weft::train {

void Control::log(const std::string& name, double value) {
  WEFT_REQUIRE(!name.empty(), "log: the value has no name");
  WEFT_REQUIRE(!observe::is_of_weft(name),
               "log: '" + name + "' is one of weft's own metrics; choose another name");
  logged_.emplace_back(name, value);
}

namespace internal {
namespace {

// Whether any rank has each of the two. Collective.
std::pair<bool, bool> on_any_rank(const Group& world, bool first, bool second) {
  at::Tensor any = at::tensor({first ? 1 : 0, second ? 1 : 0}, at::kInt);
  if (world.size() > 1) world.all_reduce(any, ReduceOp::kMax);
  return {any[0].item<int>() > 0, any[1].item<int>() > 0};
}

}  // namespace

Callbacks::Callbacks(const Options& options, const Group& world)
    : on_step_(options.on_step), on_epoch_end_(options.on_epoch_end) {
  std::tie(any_on_step_, any_on_epoch_end_) =
      on_any_rank(world, on_step_ != nullptr, on_epoch_end_ != nullptr);
}

void Callbacks::step_done(const StepReport& step) {
  if (on_step_) on_step_(step, control_);
}

bool Callbacks::epoch_done(const EpochReport& epoch) {
  if (on_epoch_end_) on_epoch_end_(epoch, control_);
  return any_on_epoch_end_;
}

Callbacks::Requests Callbacks::take_requests() {
  return {std::exchange(control_.stop_, false), std::exchange(control_.save_, false)};
}

Callbacks::Requests Callbacks::agree(const Group& world) {
  const Requests mine = take_requests();
  const auto [stop, save] = on_any_rank(world, mine.stop, mine.save);
  return {stop, save};
}

Callbacks::Requests Callbacks::share(const Group& world) {
  if (!any_on_step_) return {};
  const Requests all = agree(world);
  add_requests(all);
  return all;
}

void Callbacks::add_requests(const Requests& requests) {
  control_.stop_ = control_.stop_ || requests.stop;
  control_.save_ = control_.save_ || requests.save;
}

observe::Values Callbacks::take_logged() { return std::exchange(control_.logged_, {}); }

Decisions::Decisions(const Options& options, const Group& world)
    : callbacks_(options, world), keeps_best_(options.keep_best) {
  if (Best::is_on(options)) best_.emplace(options);
}

void Decisions::evaluated(const Evaluation& evaluation, std::int64_t step) {
  if (!best_) return;
  if (best_->add(evaluation, step)) save_is_due_ = keeps_best_;
  watch_patience();
}

void Decisions::restore(const Best::State& state) {
  if (!best_) return;
  if (!best_->restore(state)) {
    log_info("evaluations are compared anew: train.best_metric or train.best_is has changed",
             {{"best_metric", best_->mark().metric}, {"was", state.metric + ", " + state.is}});
  }
  watch_patience();
}

void Decisions::watch_patience() {
  if (!best_->is_over()) return;
  ends_ = true;
  reason_ =
      "no better " + best_->mark().metric + " in " + counted(best_->state().since, "evaluation");
}

}  // namespace internal
}  // namespace weft::train
