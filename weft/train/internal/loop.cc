#include "weft/train/internal/loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "weft/agent/link.h"
#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/file.h"
#include "weft/observe/position/position.h"
#include "weft/observe/report/report.h"
#include "weft/train/internal/batch_schedule.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every `every` steps, and about once a second where steps are long, so that requests to stop, save
// or resize do not wait.
std::int64_t next_look(std::int64_t step, std::int64_t every, double step_s) {
  const std::int64_t regular = step - step % every + every;
  return step_s > 0 ? std::min(regular, step + 1 + static_cast<std::int64_t>(1 / step_s)) : regular;
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

}  // namespace

Loop::Loop(Options options, const Config& config, Group world, bool copies)
    : options_(std::move(options)),
      config_(config),
      world_(std::move(world)),
      copies_(copies),
      started_(Clock::now()),
      tracing_(world_, options_.trace.empty() ? TraceSteps{} : parse_trace(options_.trace)) {}

std::optional<TrainResult> Loop::run() {
  const observe::Trace::Use here(tracing_.trace(), "main");
  progress_->start_run(batches_of_run(), epoch_ * learner_->batches().per_epoch + in_epoch_);
  while (epoch_ < options_.epochs && !at_end() && resize_ == 0 && !changes_plan_) run_epoch();
  if (resize_ != 0 && epoch_ < options_.epochs && !at_end()) {
    if (saver_) saver_->settle();
    copy_state(/*now=*/true);
    return std::nullopt;
  }
  if (changes_plan_ && epoch_ < options_.epochs && !at_end()) {
    if (saved_step_ != step_) save_now();
    saver_->finish();
    return std::nullopt;
  }
  changes_plan_ = false;
  if (!stop_ && evaluated_step_ != step_) evaluate();
  if (last_save_is_due()) save();
  observe::set_activity(observe::Activity::kEnd);
  learner_->model().wait_for_weights();
  if (saver_) saver_->finish();
  if (learner_->shared() != nullptr) {
    tracing_.meet(step_, /*is_end=*/true);
    show_staleness();
  } else {
    tracing_.finish();
  }
  if (metrics_) metrics_->flush();
  measure_run();
  world_.barrier();  // no rank leaves while others still need it
  if (folder_ && folder_->is_gone()) {
    throw Error(Errc::kUnavailable,
                "the run folder " + folder_->path() +
                    " was deleted or moved while the run trained: its metrics and log are lost");
  }
  if (folder_) write_report();
  TrainResult result;
  result.ranks = world_.size();
  result.epochs = epoch_;
  result.steps = step_;
  result.loss = evaluation_.loss;
  result.metrics = evaluation_.metrics;
  result.accuracy = evaluation_.metric("accuracy");
  result.samples_per_s = training_s_ > 0 ? trained_samples_ / training_s_ : 0;
  result.seconds = seconds_since(started_);
  result.stopped = stop_;
  result.ended_early = decisions_->ends() && !is_complete();
  if (const BestMark best = decisions_->best(); best.step >= 0) {
    result.best_step = best.step;
    result.best = best.value;
  }
  return result;
}

// As the progress line counts them: from the first one, in batches.
std::int64_t Loop::batches_of_run() const {
  const std::int64_t all = options_.epochs * learner_->batches().per_epoch;
  return options_.max_steps > 0 ? std::min(all, options_.max_steps) : all;
}

void Loop::run_epoch() {
  const std::int64_t steps = epoch_steps_;
  progress_->start("epoch " + std::to_string(epoch_ + 1) + "/" + std::to_string(options_.epochs),
                   steps, in_epoch_);
  const auto start = window_began_ = Clock::now();
  while (in_epoch_ < steps && !at_end() && resize_ == 0 && !changes_plan_) {
    advance();
    compare_replicas();
    progress_->update(in_epoch_, shown_);
    if (in_epoch_ == steps || at_end()) continue;
    evaluate_within();
    if (save_is_due()) save();
    copy_state();
  }
  training_s_ += seconds_since(start);
  progress_->finish();
  if (in_epoch_ == steps) end_of_epoch();
  if (!at_end()) copy_state();
}

void Loop::advance() {
  if (learner_->shared() != nullptr) return run_shared();
  tracing_.before(step_ + 1);
  StepReport report = step();
  tracing_.after(step_);
  step_loss_.reset();
  if (look_due()) look();
  report.loss = step_loss_;
  tell_step(report);
}

StepReport Loop::step() {
  const auto start = Clock::now();
  const observe::TraceScope whole("step", "step");
  set_failpoint_step(step_ + 1);
  observe::set_step(step_ + 1);
  failpoint("step.begin");
  timer_.reset();
  const comm::Traffic before = world_.traffic();
  const std::int64_t waited_before = observe::waited_ns();
  const double lr = rate_.at(static_cast<double>(epoch_) +
                             static_cast<double>(in_epoch_) / static_cast<double>(epoch_steps_));
  Learner::Step done =
      learner_->step(step_ + 1, lr, timer_, std::min(passes_, epoch_steps_ - in_epoch_));
  StepLog::Step record{
      step_ + 1,      epoch_,    lr, done.samples, seconds_since(start), {}, std::move(done.losses),
      done.grad_norm, done.noise};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase)
    record.ms[phase] = timer_.ms(static_cast<Phase>(phase));
  const comm::Traffic after = world_.traffic();
  record.sent_bytes = static_cast<double>(after.sent_bytes - before.sent_bytes);
  record.shared_bytes = static_cast<double>(after.shared_bytes - before.shared_bytes);
  record.skipped = done.skipped;
  const bool is_bad = done.skipped && !parallel::scales_loss(options_.plan);
  record.bad_gradient = is_bad && learner_->workers() == nullptr;  // the same on all ranks
  if (done.skipped) watch_verification();
  skipped_in_a_row_ = is_bad ? skipped_in_a_row_ + 1 : 0;
  if (is_bad && learner_->is_first_of_worker()) name_skipped_step();
  record.waited_s = 1e-9 * static_cast<double>(observe::waited_ns() - waited_before);
  if (copying_) copying_->add_step(seconds_since(start));
  grad_norm_ = done.grad_norm;
  count_step(record);
  const StepReport report{step_ + 1, epoch_, lr, done.samples, record.seconds};
  if (learner_->shared() != nullptr) {
    add_shared(record);
  } else {
    log_->add(std::move(record));
    trained_samples_ += done.samples;
    window_samples_ += done.samples;
  }
  ++step_;
  in_epoch_ += done.passes;
  note_time(false);
  return report;
}

void Loop::note_time(bool ready) {
  if (!times_.is_on()) return;
  const data::SamplerState at = learner_->position();
  times_.add({.ranks = world_.size(),
              .group = world_.epoch(),
              .step = step_,
              .epoch = at.epoch,
              .position = at.position,
              .ready = ready});
}

// Reduces the losses of the last steps over the ranks and agrees on whether to stop.
void Loop::look() {
  looked_step_ = step_;
  const bool last = at_end() || in_epoch_ == epoch_steps_;
  const bool show_ranks = last || seconds_since(ranks_shown_) >= 1;
  if (show_ranks) ranks_shown_ = Clock::now();
  const bool wishes_to_stop = std::exchange(shared_.wishes_to_stop, false) ||
                              (options_.should_stop && options_.should_stop());
  const Callbacks::Requests asked = decisions_->callbacks().take_requests();
  auto seen = log_->reduce(epoch_loss_,
                           {.stop = wishes_to_stop,
                            .end = asked.stop,
                            .save = asked.save || (world_.rank() == 0 && minutes_due()),
                            .ranks = requests_.ranks()},
                           show_ranks);
  if (wishes_to_stop) agent::tell_launcher("stopping", "should_stop");
  if (wishes_to_stop && seen.stops < world_.size())
    log_warn("this rank was told to stop: all ranks stop after this step", {{"step", step_}});
  if (learner_->shared() != nullptr) {
    take_sums(seen);
  } else {
    show(seen);
  }
  epoch_loss_ = seen.sum;
  epoch_samples_ += seen.samples;
  stop_ = seen.stop;
  if (seen.end) end_early();
  save_due_ = seen.save;
  if (learner_->shared() == nullptr) step_loss_ = seen.loss;
  resize_ = copies_ && seen.ranks != world_.size() ? seen.ranks : 0;
  if (step_ % options_.log_every == 0)  // other calls depend on times
    passes_ =
        next_passes(passes_, seen.noise_scale, learner_->batches().global, learner_->max_passes());
  next_look_ = next_look(step_, options_.log_every, seen.step_s);
  if (folder_ && !folder_gone_ && folder_->is_gone()) {
    folder_gone_ = true;
    log_error("the run folder " + folder_->path() +
              " was deleted or moved: its metrics and log are lost; training goes on");
  }
  if (world_.rank() == 0 && show_ranks) agent::tell_launcher("step", std::to_string(step_));
  watch_numbers(seen.not_finite);
  watch_stragglers(seen);
  watch_plan_now();
  if (saver_) saver_->poll();
  learner_->rebalance();
}

// About once a second, the mean since the last time.
void Loop::tell_rate(double samples, double seconds) {
  rate_samples_ += samples;
  rate_seconds_ += seconds;
  if (rate_seconds_ < 1) return;
  agent::tell_launcher("rate", std::to_string(rate_samples_ / rate_seconds_));
  rate_samples_ = rate_seconds_ = 0;
}

void Loop::show(const StepLog::Seen& seen) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - window_began_).count();
  shown_ = {{"loss", seen.loss}};
  if (grad_norm_) shown_.emplace_back("grad_norm", *grad_norm_);
  if (seen.noise_scale) shown_.emplace_back("noise_scale", std::round(*seen.noise_scale));
  if (seconds > 0)
    shown_.emplace_back(throughput_.name,
                        std::round(window_samples_ * throughput_.per_sample / seconds));
  if (seconds > 0 && world_.rank() == 0) tell_rate(window_samples_, seconds);
  const double flops = learner_->flops_per_sample() * window_samples_,
               peak = options_.peak_tflops * 1e12 * world_.size();
  if (flops > 0 && peak > 0 && seconds > 0)
    shown_.emplace_back("mfu", std::round(1e3 * flops / seconds / peak) / 1e3);
  shown_.emplace_back("memory_gb", std::round(seen.memory_gb * 100) / 100);
  shown_.insert(shown_.end(), logged_.begin(), logged_.end());
  window_began_ = now;
  window_samples_ = 0;
}

void Loop::end_of_epoch() {
  learner_->end_epoch();
  const double loss = epoch_loss_ / epoch_samples_;  // NaN if all steps were skipped
  ++epoch_;
  in_epoch_ = 0;
  epoch_steps_ = learner_->batches().per_epoch;
  epoch_loss_ = epoch_samples_ = 0;
  const bool last = epoch_ == options_.epochs;
  const auto due = [&](std::int64_t every) { return every > 0 && (last || epoch_ % every == 0); };
  if (due(options_.eval_every) || evaluation_due() || last) evaluate();
  tell_epoch(loss);
  if (due(options_.checkpoint_every) || save_is_due()) save();
  std::vector<LogField> fields{{"epoch", epoch_}, {"train_loss", rounded(loss)}};
  if (evaluation_.samples > 0) fields.emplace_back("test_loss", rounded(evaluation_.loss));
  for (const auto& [name, value] : evaluation_.metrics) fields.emplace_back(name, rounded(value));
  for (LogField& field : fields_(evaluation_, trained_samples_ / training_s_))
    fields.push_back(std::move(field));
  observe::Values more;
  if (const auto experts = learner_->expert_use())
    more = {{"expert_load_max", experts->load_max}, {"expert_dropped", experts->dropped}};
  if (metrics_ && !more.empty()) metrics_->add("train", step_, epoch_, more);
  for (const auto& [name, value] : more) fields.emplace_back(name, rounded(value));
  log_info("epoch done", fields);
}

// Its time does not count as training time. look() has written the metrics of the steps before.
void Loop::evaluate_within() {
  if (!evaluation_due()) return;
  const auto start = Clock::now();
  evaluate();
  training_s_ -= seconds_since(start);
  window_began_ += Clock::now() - start;
}

void Loop::evaluate() {
  const observe::ActivityScope activity(observe::Activity::kEvaluation);
  learner_->model().wait_for_weights();
  evaluation_ = learner_->evaluate();
  evaluated_step_ = step_;
  if (evaluation_.samples == 0) return;
  decisions_->evaluated(evaluation_, step_);
  if (!decisions_->reason().empty()) end_early();
  if (!metrics_) return;
  observe::Values values(evaluation_.metrics.begin(), evaluation_.metrics.end());
  values.emplace_back("test_loss", evaluation_.loss);
  metrics_->add("test", step_, epoch_, values);
}

void Loop::write_report() const {
  try {
    observe::write_report({folder_->path()}, folder_->path() + "/report.html");
  } catch (const std::exception& error) {
    log_warn("cannot write the report of the run: " + describe(error));
  }
}

// A callback may have asked after the last look(). The checkpoint of this step is saved again if
// the evaluation after it is the best so far. Collective.
bool Loop::last_save_is_due() {
  if (decisions_->save_is_due()) return true;
  if (saved_step_ == step_) return false;
  if (saves() || stop_ || decisions_->ends() || save_is_due()) return true;
  const Callbacks::Requests asked = decisions_->callbacks().agree(world_);
  return asked.save || asked.stop;
}

bool Loop::minutes_due() const {
  return options_.checkpoint_minutes > 0 &&
         seconds_since(saved_at_) >= 60 * options_.checkpoint_minutes;
}

// A run that resumes here must find the metrics of all steps until here. They also tell whether the
// loss is finite. Skipped steps leave the weights as they were, but these may be why the loss is
// not finite: a checkpoint that is only due by its period must not take the place of a good one.
void Loop::save() {
  if (looked_step_ != step_ && learner_->shared() == nullptr) look();
  const bool is_wanted = decisions_->save_is_due() || at_end() || is_complete();
  if (is_finite_ || (options_.plan.skip_not_finite && is_wanted)) save_now();
}

void Loop::save_now() {
  const observe::ActivityScope activity(observe::Activity::kCheckpoint);
  saved_step_ = step_;
  saved_at_ = Clock::now();
  save_due_ = false;
  decisions_->saved();
  if (!saver_) make_saver();
  saver_->save(shards_of(learner_->parts(false), progressed()), decisions_->best());
}

// Does nothing where no copy is due. Without look(), the state would lack the losses of the steps
// since the last one.
void Loop::copy_state(bool now) {
  if (!copying_ || (!now && !copying_->is_due(step_))) return;
  const observe::ActivityScope activity(observe::Activity::kCheckpoint);
  if (looked_step_ != step_) look();
  learner_->model().wait_for_weights();
  copying_->take(shards_of(learner_->parts(true), progressed()));
}

}  // namespace weft::train::internal
