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

// "rank 1 is slow: the others wait for it 40 % of a step".
std::string straggler_line(const std::vector<int>& slow, const StragglerWatch& watch) {
  std::string text;
  for (const int rank : slow) {
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) +
            " is slow: the others wait for it " +
            std::to_string(std::lround(100 * watch.share(rank))) + " % of a step";
  }
  return text.empty() ? "no rank is slower than the others any more" : text;
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
  while (epoch_ < options_.epochs && !at_end() && resize_ == 0) run_epoch();
  if (resize_ != 0 && epoch_ < options_.epochs && !at_end()) {
    if (saver_) saver_->settle();
    copy_state(/*now=*/true);
    return std::nullopt;
  }
  if (!stop_ && evaluated_step_ != step_) evaluate();
  if (saved_step_ != step_ && saver_) save();
  observe::set_activity(observe::Activity::kEnd);
  learner_->model().wait_for_weights();
  if (saver_) saver_->finish();
  tracing_.finish();
  if (metrics_) metrics_->flush();
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
  return result;
}

void Loop::run_epoch() {
  const std::int64_t steps = epoch_steps_;
  progress_->start("epoch " + std::to_string(epoch_ + 1), steps, in_epoch_);
  const auto start = window_began_ = Clock::now();
  while (in_epoch_ < steps && !at_end() && resize_ == 0) {
    tracing_.before(step_ + 1);
    step();
    tracing_.after(step_);
    if (look_due()) look();
    compare_replicas();
    progress_->update(in_epoch_, shown_);
    if (in_epoch_ == steps || at_end()) continue;
    evaluate_within();
    if (steps_due() || save_due_) save();
    copy_state();
  }
  training_s_ += seconds_since(start);
  progress_->finish();
  if (in_epoch_ == steps) end_of_epoch();
  if (!at_end()) copy_state();
}

void Loop::step() {
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
  if (is_bad && learner_->is_first_of_worker()) name_skipped_step();
  record.waited_s = 1e-9 * static_cast<double>(observe::waited_ns() - waited_before);
  log_->add(std::move(record));
  if (copying_) copying_->add_step(seconds_since(start));
  trained_samples_ += done.samples;
  window_samples_ += done.samples;
  grad_norm_ = done.grad_norm;
  ++step_;
  in_epoch_ += done.passes;
  note_time(false);
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
  const bool wishes_to_stop = options_.should_stop && options_.should_stop();
  const auto seen = log_->reduce(
      epoch_loss_, {wishes_to_stop, world_.rank() == 0 && minutes_due(), requests_.ranks()},
      show_ranks);
  if (wishes_to_stop) agent::tell_launcher("stopping");
  if (wishes_to_stop && seen.stops < world_.size())
    log_warn("this rank was told to stop: all ranks stop after this step", {{"step", step_}});
  epoch_loss_ = seen.sum;
  show(seen);
  stop_ = seen.stop;
  save_due_ = seen.save;
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
  window_began_ = now;
  window_samples_ = 0;
}

// Logs an error when the loss or a gradient becomes NaN or infinite, and ends the run when it stays
// so. No checkpoint is saved meanwhile, so that the good ones are kept. If such steps are skipped,
// the run ends with a checkpoint of the last good step.
void Loop::watch_numbers(const StepLog::Seen::NotFinite& now) {
  const bool was_finite = std::exchange(is_finite_, now.steps == 0);
  if (is_finite_) return;
  const bool skips = options_.plan.skip_not_finite;
  const std::string where = std::string(now.is_loss ? "the loss is" : "gradients are") +
                            " NaN or infinite since step " + std::to_string(now.first_step) +
                            (now.rank < 0 ? "" : ", first on rank " + std::to_string(now.rank));
  if (was_finite) {
    log_error(where + (skips ? "; these steps are skipped"
                             : "; no checkpoint is saved until it is finite again"));
  }
  if (options_.max_not_finite == 0 || now.steps < options_.max_not_finite) return;
  if (skips && saver_) {
    if (saved_step_ != step_) save_now();
    saver_->finish();
  }
  throw Error(Errc::kBadConfig,
              where + ", " + std::to_string(now.steps) +
                  " steps in a row: the run ends; lower the learning rate, clip gradients "
                  "(optimizer.max_grad_norm), or raise train.max_not_finite, and resume from the "
                  "last checkpoint" +
                  (skips && saver_ ? ", which has the weights of the last good step" : ""));
}

// A rank that is found twice would be found again.
void Loop::watch_verification() {
  for (const auto& wrong : learner_->model().wrong_gradients()) {
    std::string ranks;
    for (const int rank : wrong.ranks)
      ranks += (ranks.empty() ? "" : " or ") + std::to_string(rank);
    const std::string what = "rank " + ranks + " has computed a wrong gradient of " +
                             wrong.parameter + " in step " + std::to_string(step_ + 1) +
                             ": another rank gets other bits for the same batch and weights";
    if (world_.rank() == 0) log_error(what);
    if (++found_wrong_[wrong.ranks] < 2) continue;
    if (saver_) {
      if (saved_step_ != step_) save();
      saver_->finish();
    }
    throw Error(Errc::kCorrupt, what + ", for the second time: take its host out and resume");
  }
}

void Loop::name_skipped_step() const {
  if (!learner_->model().wrong_gradients().empty())
    return log_warn("step " + std::to_string(step_ + 1) + " is skipped");
  const auto& bad = learner_->model().not_finite();
  std::string where;
  for (const auto& [rank, parameter] : bad) {
    if (where.empty())
      where = "the gradient of " + parameter + " is NaN or infinite on rank " +
              std::to_string(learner_->world_rank(rank));
  }
  if (where.empty()) where = "the sum of the gradients over the ranks is NaN or infinite";
  if (bad.size() > 1) where += " and " + std::to_string(bad.size() - 1) + " more";
  log_warn("step " + std::to_string(step_ + 1) + " is skipped: " + where);
}

// All ranks get the same answer.
void Loop::watch_stragglers(const StepLog::Seen& seen) {
  const auto slow = stragglers_.add(seen.steps, seen.awaited);
  if (!slow) return;
  if (world_.rank() == 0) log_warn(straggler_line(*slow, stragglers_));
  if (options_.on_straggler == OnStraggler::kRebalance && !slow->empty())
    learner_->start_balancing();
  const bool is_slow = std::find(slow->begin(), slow->end(), world_.rank()) != slow->end();
  if (options_.on_straggler == OnStraggler::kReplace && is_slow) observe::ask_for_replacement();
}

// Before a checkpoint of this step is saved.
void Loop::compare_replicas() {
  if (options_.compare_steps == 0 || step_ % options_.compare_steps != 0) return;
  const auto found = learner_->model().compare_replicas();
  if (found.empty()) return;
  const auto lost = std::find_if(found.begin(), found.end(),
                                 [](const auto& difference) { return !difference.is_healed; });
  const auto& named = lost != found.end() ? *lost : found.front();
  std::string ranks;
  for (const int rank : named.ranks)
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(learner_->world_rank(rank));
  const std::string more =
      found.size() > 1 ? " and " + std::to_string(found.size() - 1) + " more tensors" : "";
  const std::string what = "replicas differ after step " + std::to_string(step_) + ": " +
                           named.tensor + more +
                           (named.ranks.size() > 1 ? ", on ranks " : ", on rank ") + ranks +
                           ": a bit has flipped in memory, or a processor has computed wrongly";
  if (lost == found.end()) {
    if (learner_->is_first_of_worker()) log_warn(what + "; it has got the values of the majority");
    return;
  }
  throw Error(Errc::kCorrupt, what + "; there is no majority, so resume from a checkpoint before " +
                                  "step " + std::to_string(step_ - options_.compare_steps + 1));
}

void Loop::end_of_epoch() {
  learner_->end_epoch();
  const double loss = epoch_loss_ / static_cast<double>(learner_->samples());
  ++epoch_;
  in_epoch_ = 0;
  epoch_steps_ = learner_->batches().per_epoch;
  epoch_loss_ = 0;
  const bool last = epoch_ == options_.epochs;
  const auto due = [&](std::int64_t every) { return every > 0 && (last || epoch_ % every == 0); };
  if (due(options_.eval_every) || last) evaluate();
  if (saver_ && (due(options_.checkpoint_every) || steps_due() || save_due_)) save();
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

// Its time does not count as training time.
void Loop::evaluate_within() {
  const auto every = options_.eval_steps;
  if (every == 0 || step_ % every != 0) return;
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
  if (!metrics_ || evaluation_.samples == 0) return;
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

bool Loop::minutes_due() const {
  return options_.checkpoint_minutes > 0 &&
         seconds_since(saved_at_) >= 60 * options_.checkpoint_minutes;
}

void Loop::save() {
  if (is_finite_) save_now();
}

void Loop::save_now() {
  const observe::ActivityScope activity(observe::Activity::kCheckpoint);
  saved_step_ = step_;
  saved_at_ = Clock::now();
  save_due_ = false;
  saver_->save(shards_of(learner_->parts(false), progressed()));
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
