#include "weft/train/internal/worker_reports.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/log.h"
#include "weft/observe/memory.h"
#include "weft/rank_link/messages.h"

namespace weft::train::internal {
namespace {

using Done = strategy::SharedBatches::Done;

Done sum_of(const std::vector<Done>& ranks) {
  Done sum;
  for (const Done& rank : ranks) sum += rank;
  return sum;
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

LeftOut left_out_of(const LeftOut& before, const Done& done) {
  return {.skipped = before.skipped + std::lround(done.skipped),
          .dropped = before.dropped + std::lround(done.dropped)};
}

std::string whole_percent(double part, double whole) {
  return std::to_string(std::lround(100 * part / whole)) + " %";
}

}  // namespace

void WorkerReports::begin(const RunCount& at) {
  begin_ = at.in_epoch;
  next_report_ = at.in_epoch + options_.log_every;
  reported_at_ = Clock::now();
}

void WorkerReports::add(const StepLog::Step& step) {
  grad_norm_ = step.grad_norm;
  double loss = 0;
  for (const double part : step.losses) loss += part;
  const bool is_finite = std::isfinite(loss);
  strategy::SharedBatches& shared = *learner_.shared();
  // Ranks of a worker that have no part of the loss know nothing of it.
  if (!is_finite || loss != 0) shared.add_finite(is_finite, step.step);
  const bool is_first = learner_.is_first_of_worker();
  const strategy::Rule& rule = learner_.workers()->rule();
  const strategy::Staleness now = rule.staleness(), before = std::exchange(staleness_, now);
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
  done.dropped = static_cast<double>(dropped - std::exchange(dropped_, dropped));
  shared.add(done);
}

void WorkerReports::report(const RunCount& at, bool last) {
  if (world_.rank() != 0) return;
  const auto ranks = learner_.shared()->done();
  const Done all = sum_of(ranks);
  Done since = all, of_segment = all;
  since -= reported_;
  of_segment -= met_;
  const int workers = learner_.shared()->workers();
  const std::int64_t done = begin_ + static_cast<std::int64_t>(of_segment.batches) / workers;
  if (since.samples <= 0 || (!last && done < next_report_)) return;
  next_report_ = done - done % options_.log_every + options_.log_every;
  const auto now = Clock::now();
  const double seconds =
      std::max(1e-9, std::chrono::duration<double>(now - std::exchange(reported_at_, now)).count());
  reported_ = all;
  StepLog::Seen seen;
  seen.loss = since.loss / since.counted;
  seen.memory_gb = static_cast<double>(observe::process_memory()) / 1e9;
  seen.grad_norm = grad_norm_;
  output_.speed().add_to_window(since.samples);
  output_.show(seen);
  output_.line().update(done, output_.shown());
  if (output_.metrics() == nullptr) return;
  const std::int64_t step = at.step - at.in_epoch + done;
  observe::Values values{{"loss", seen.loss},
                         {"lr", learner_.model().lr()},
                         {"samples_per_s", since.samples / seconds}};
  if (grad_norm_) values.emplace_back("grad_norm", *grad_norm_);
  const LeftOut so_far = left_out_of(before_, all);
  if (so_far.skipped > 0) values.emplace_back("skipped_steps", static_cast<double>(so_far.skipped));
  if (so_far.dropped > 0) values.emplace_back("dropped_steps", static_cast<double>(so_far.dropped));
  if (since.exchanges > 0) values.emplace_back("staleness", since.staleness / since.exchanges);
  values.emplace_back("memory_gb", seen.memory_gb);
  if (world_.size() > 1 && world_.traffic().is_complete) {
    const double batches = std::max(1.0, since.batches);
    values.emplace_back("sent_mb", since.sent_bytes / batches / 1e6);
    values.emplace_back("shared_mb", since.moved_bytes / batches / 1e6);
  }
  output_.metrics()->add("train", step, at.epoch, values);
  if (!output_.shows_ranks(last)) return;
  output_.metrics()->write_ranks(step, states_of(ranks));
  rank_link::tell_launcher(rank_link::StepsDone{step});
}

double WorkerReports::take_sums(StepLog::Seen& seen) {
  const Done all = sum_of(learner_.shared()->done());
  Done since = all;
  since -= std::exchange(met_, all);
  seen.sum += since.loss;
  seen.samples = since.counted;
  const auto bad = learner_.shared()->not_finite();
  seen.not_finite = {static_cast<int>(bad.batches), bad.first_step, bad.rank, true};
  return since.samples;
}

LeftOut WorkerReports::left_out() const { return left_out_of(before_, met_); }

void WorkerReports::show_staleness(const RunCount& at) const {
  strategy::Staleness mine;
  if (learner_.is_first_of_worker()) mine = learner_.workers()->rule().staleness();
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
  if (output_.metrics() != nullptr) output_.metrics()->add("train", at.step, at.epoch, values);
  const auto ranks = learner_.shared()->done();
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
