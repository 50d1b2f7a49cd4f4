// How the loop runs where workers take batches when they are ready (asynchronous strategies).
//
//   begin ── each rank its batches, at its own time ── meet: look, evaluate, save, copy ── begin …
//
// Ranks meet at the end of an epoch, and where an evaluation, a checkpoint, a copy of the state or
// train.max_steps is due. A rank that wishes to stop, save or resize ends the batches that are
// given out, so that all ranks meet soon. Between meetings, rank 0 reports what it finds in the
// memory that the ranks share, or in the store of the job.
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "weft/agent/link.h"
#include "weft/observe/memory.h"
#include "weft/train/internal/loop.h"

namespace weft::train::internal {

namespace {

using Done = strategy::SharedBatches::Done;

Done sum_of(const std::vector<Done>& ranks) {
  Done sum;
  for (const Done& rank : ranks) sum += rank;
  return sum;
}

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Per batch of a worker.
std::vector<observe::RankState> states_of(const std::vector<Done>& ranks) {
  std::vector<observe::RankState> states;
  for (const Done& rank : ranks) {
    const double batches = std::max(1.0, rank.batches);
    states.push_back({.compute_ms = 1e3 * rank.compute_s / batches,
                      .memory_bytes = rank.memory_bytes,
                      .sent_bytes = rank.sent_bytes,
                      .shared_bytes = rank.moved_bytes,
                      .waited_ms = 1e3 * rank.waited_s / batches,
                      .step_ms = 1e3 * rank.seconds / batches});
  }
  return states;
}

std::string whole_percent(double part, double whole) {
  return std::to_string(std::lround(100 * part / whole)) + " %";
}

}  // namespace

// A step within the epoch, like in_epoch_.
std::int64_t Loop::next_meeting() const {
  std::int64_t next = step_ - in_epoch_ + epoch_steps_;
  for (const std::int64_t every : {options_.eval_steps, options_.checkpoint_steps}) {
    if (every > 0) next = std::min(next, step_ - step_ % every + every);
  }
  if (options_.max_steps > 0) next = std::min(next, options_.max_steps);
  for (std::int64_t step = step_ + 1; copying_ && step < next; ++step) {
    if (copying_->is_due(step)) next = step;
  }
  return next - step_ + in_epoch_;
}

// From one meeting to the next.
void Loop::run_shared() {
  const std::int64_t first = step_ - in_epoch_;
  shared_.begin = in_epoch_;
  shared_.next_report = in_epoch_ + options_.log_every;
  shared_.reported_at = shared_.looked_at = Clock::now();
  learner_->begin_batches(in_epoch_, next_meeting(), step_);
  while (const auto taken = learner_->take_batch()) {
    in_epoch_ = *taken;
    step_ = first + *taken;
    tracing_.before(step_ + 1);
    tell_step(step());
    report_shared(/*last=*/false);
    if (wants_meeting()) learner_->shared()->close();
  }
  in_epoch_ = learner_->end_batches();
  step_ = first + in_epoch_;
  tracing_.meet(step_);
  report_shared(/*last=*/true);
  look();
}

// Looks about once a second, and every log_every batches of this rank.
bool Loop::wants_meeting() {
  const auto bad = learner_->shared()->not_finite().batches;
  if (options_.max_not_finite > 0 && bad >= options_.max_not_finite) return true;
  const auto now = Clock::now();
  if (step_ < next_look_ && seconds_between(shared_.looked_at, now) < 1) return false;
  shared_.looked_at = now;
  next_look_ = step_ + options_.log_every;
  if (!shared_.wishes_to_stop && options_.should_stop)
    shared_.wishes_to_stop = options_.should_stop();
  if (shared_.wishes_to_stop || decisions_->callbacks().has_requests()) return true;
  if (world_.rank() != 0) return false;
  const int ranks = copies_ ? requests_.ranks() : 0;
  return minutes_due() || (ranks != 0 && ranks != world_.size());
}

void Loop::add_shared(const StepLog::Step& step) {
  double loss = 0;
  for (const double part : step.losses) loss += part;
  const bool is_finite = std::isfinite(loss);
  strategy::SharedBatches& shared = *learner_->shared();
  // Ranks of a worker that have no part of the loss know nothing of it.
  if (!is_finite || loss != 0) shared.add_finite(is_finite, step.step);
  const bool is_first = learner_->is_first_of_worker();
  const strategy::Rule& rule = learner_->workers()->rule();
  const strategy::Staleness now = rule.staleness(), before = std::exchange(shared_.staleness, now);
  const std::int64_t dropped = rule.dropped_steps();
  Done done;
  done.batches = is_first ? 1 : 0;
  done.samples = step.samples;
  const bool counts = is_finite && !step.skipped;
  done.loss = counts ? loss : 0;
  done.counted = counts ? step.samples : 0;
  done.skipped = is_first && step.skipped ? 1 : 0;
  done.seconds = step.seconds;
  done.compute_s = 1e-3 * (step.ms[static_cast<std::size_t>(observe::Phase::kForward)] +
                           step.ms[static_cast<std::size_t>(observe::Phase::kBackward)]);
  done.waited_s = step.waited_s;
  done.sent_bytes = step.sent_bytes;
  done.moved_bytes = step.shared_bytes;
  done.memory_bytes = static_cast<double>(observe::process_memory());
  done.exchanges = static_cast<double>(now.exchanges() - before.exchanges());
  done.staleness = static_cast<double>(now.sum - before.sum);
  done.dropped = static_cast<double>(dropped - std::exchange(shared_.dropped, dropped));
  shared.add(done);
}

// On rank 0: one record for the batches that all workers have done since the last one.
void Loop::report_shared(bool last) {
  if (world_.rank() != 0) return;
  const auto ranks = learner_->shared()->done();
  const Done all = sum_of(ranks);
  Done since = all, of_segment = all;
  since -= shared_.reported;
  of_segment -= shared_.met;
  const int workers = learner_->shared()->workers();
  const std::int64_t done = shared_.begin + static_cast<std::int64_t>(of_segment.batches) / workers;
  if (since.samples <= 0 || (!last && done < shared_.next_report)) return;
  shared_.next_report = done - done % options_.log_every + options_.log_every;
  const auto now = Clock::now();
  const double seconds = std::max(1e-9, seconds_between(shared_.reported_at, now));
  shared_.reported_at = now;
  shared_.reported = all;
  StepLog::Seen seen;
  seen.loss = since.loss / since.counted;
  seen.memory_gb = static_cast<double>(observe::process_memory()) / 1e9;
  window_samples_ = since.samples;
  show(seen);
  progress_->update(done, shown_);
  if (!metrics_) return;
  const std::int64_t step = step_ - in_epoch_ + done;
  observe::Values values{{"loss", seen.loss},
                         {"lr", learner_->model().lr()},
                         {"samples_per_s", since.samples / seconds}};
  if (grad_norm_) values.emplace_back("grad_norm", *grad_norm_);
  if (all.skipped > 0) values.emplace_back("skipped_steps", all.skipped);
  if (all.dropped > 0) values.emplace_back("dropped_steps", all.dropped);
  if (since.exchanges > 0) values.emplace_back("staleness", since.staleness / since.exchanges);
  values.emplace_back("memory_gb", seen.memory_gb);
  if (world_.size() > 1 && world_.traffic().is_complete) {
    const double batches = std::max(1.0, since.batches);
    values.emplace_back("sent_mb", since.sent_bytes / batches / 1e6);
    values.emplace_back("shared_mb", since.moved_bytes / batches / 1e6);
  }
  metrics_->add("train", step, epoch_, values);
  if (!last && seconds_between(ranks_shown_, now) < 1) return;
  ranks_shown_ = now;
  metrics_->write_ranks(step, states_of(ranks));
  agent::tell_launcher("step", std::to_string(step));
}

// What all workers have done since they met last, on all ranks.
void Loop::take_sums(StepLog::Seen& seen) {
  const Done all = sum_of(learner_->shared()->done());
  Done since = all;
  since -= std::exchange(shared_.met, all);
  seen.sum += since.loss;
  seen.samples = since.counted;
  trained_samples_ += since.samples;
  const auto bad = learner_->shared()->not_finite();
  seen.not_finite = {static_cast<int>(bad.batches), bad.first_step, bad.rank, true};
}

// How stale exchanges were, and how many batches each worker took. Collective.
void Loop::show_staleness() {
  strategy::Staleness mine;
  if (learner_->is_first_of_worker()) mine = learner_->workers()->rule().staleness();
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(mine.counts.size()) + 1}, at::kDouble),
             largest = at::full({1}, static_cast<double>(mine.largest), at::kDouble);
  double* const numbers = sums.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < mine.counts.size(); ++i)
    numbers[i] = static_cast<double>(mine.counts[i]);
  numbers[mine.counts.size()] = static_cast<double>(mine.sum);
  if (world_.size() > 1) {
    world_.all_reduce(sums);
    world_.all_reduce(largest, ReduceOp::kMax);
  }
  double exchanges = 0;
  for (std::size_t i = 0; i < mine.counts.size(); ++i) exchanges += numbers[i];
  if (exchanges == 0) return;
  observe::Values values;
  std::string shares, batches;
  for (std::size_t i = 0; i < mine.counts.size(); ++i) {
    values.emplace_back("staleness_" + strategy::Staleness::name_of(i), numbers[i] / exchanges);
    if (numbers[i] == 0) continue;
    shares += (shares.empty() ? "" : ", ") + strategy::Staleness::name_of(i) + ": " +
              whole_percent(numbers[i], exchanges);
  }
  if (metrics_) metrics_->add("train", step_, epoch_, values);
  const auto ranks = learner_->shared()->done();
  for (const Done& rank : ranks) {
    if (rank.batches > 0)
      batches += (batches.empty() ? "" : " ") + std::to_string(std::llround(rank.batches));
  }
  std::vector<LogField> fields{
      {"exchanges", exchanges},
      {"mean", std::round(100 * numbers[mine.counts.size()] / exchanges) / 100},
      {"largest", largest.item<double>()},
      {"by_staleness", shares},
      {"batches_by_worker", batches}};
  const double dropped = sum_of(ranks).dropped;
  if (dropped > 0) fields.emplace_back("dropped_steps", dropped);
  log_info("staleness: exchanges of other workers since this one read the weights", fields);
}

}  // namespace weft::train::internal
