#include "weft/train/internal/step_log.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/kernels/tree_sum.h"
#include "weft/observe/memory.h"
#include "weft/train/internal/stragglers.h"

namespace weft::train::internal {

using observe::Phase;

namespace {

// kOfStep: besides the losses of a step, the two numbers of the gradient noise, and the number of
// ranks that skipped it.
constexpr std::size_t kWishes = 6, kMoved = 2, kOfStep = 3,
                      kOfRank = sizeof(observe::RankState) / sizeof(double);

}  // namespace

StepLog::Seen StepLog::reduce(double sum, Wishes wishes, bool show_ranks) {
  const std::size_t slots = steps_.empty() ? 0 : steps_[0].losses.size();
  const auto ranks = static_cast<std::size_t>(world_.size());
  auto shared = at::zeros({static_cast<std::int64_t>(steps_.size() * (slots + kOfStep) + kWishes +
                                                     kMoved + ranks * kOfRank)},
                          at::kDouble);
  double* const values = shared.data_ptr<double>();
  double* const wanted = values + steps_.size() * slots;
  double* const moved = wanted + kWishes;
  double* const of_ranks = moved + kMoved;
  double* const of_steps = of_ranks + ranks * kOfRank;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    std::copy(steps_[i].losses.begin(), steps_[i].losses.end(), values + i * slots);
    moved[0] += steps_[i].sent_bytes;
    moved[1] += steps_[i].shared_bytes;
    if (const auto& mine = steps_[i].noise) {
      of_steps[i * kOfStep] = mine->squares;
      of_steps[i * kOfStep + 1] = mine->inverse_samples;
    }
    of_steps[i * kOfStep + 2] = steps_[i].skipped;
    wanted[3] += steps_[i].seconds / static_cast<double>(steps_.size() * ranks);
  }
  wanted[0] = wishes.stop;
  wanted[1] = wishes.save;
  wanted[2] = world_.rank() == 0 ? wishes.ranks : 0;
  wanted[4] = wishes.end;
  wanted[5] = wishes.save_by_time;
  const observe::RankState mine = state();
  std::memcpy(of_ranks + static_cast<std::size_t>(world_.rank()) * kOfRank, &mine, sizeof mine);
  if (world_.size() > 1) world_.all_reduce(shared);
  std::vector<observe::RankState> states(ranks);
  std::memcpy(static_cast<void*>(states.data()), of_ranks, ranks * sizeof mine);
  Seen seen;
  seen.awaited = awaited_shares(states);
  seen.steps = static_cast<std::int64_t>(steps_.size());
  for (std::size_t i = 0; i < ranks; ++i) states[i].awaited_share = std::max(0.0, seen.awaited[i]);
  seen.sum = sum;
  seen.memory_gb = mine.memory_bytes / 1e9;
  seen.stops = static_cast<int>(wanted[0]);
  seen.stop = seen.stops > 0;
  seen.save = wanted[1] > 0;
  seen.save_by_time = wanted[5] > 0;
  seen.end = wanted[4] > 0;
  seen.ranks = static_cast<int>(wanted[2]);
  seen.step_s = wanted[3];
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const double total = kernels::tree_sum(values + i * slots, slots);
    const bool is_loss = !std::isfinite(total);
    if (!is_loss && !steps_[i].bad_gradient) {
      not_finite_ = {};
    } else if (++not_finite_.steps == 1) {
      not_finite_.first_step = steps_[i].step;
      not_finite_.rank = first_rank_not_finite(steps_[i]);
    }
    not_finite_.is_loss = not_finite_.is_loss || is_loss;
    skipped_ += steps_[i].skipped ? 1 : 0;
    if (of_steps[i * kOfStep + 2] == 0) {  // with a strategy, some workers may skip a step alone
      seen.sum += total;
      seen.samples += steps_[i].samples;
    }
    seen.loss = total / steps_[i].samples;
    seen.grad_norm = steps_[i].grad_norm;
    add_noise(steps_[i], of_steps + i * kOfStep);
    if (metrics_ == nullptr) continue;
    const bool is_last = i + 1 == steps_.size();
    write(steps_[i], seen.loss,
          is_last ? group_values(states, {moved, kMoved}) : observe::Values{});
    if (is_last && show_ranks) metrics_->write_ranks(steps_[i].step, states);
    if (const auto& program = steps_[i].program; !program.empty())
      metrics_->add("program", steps_[i].step, steps_[i].epoch, program);
  }
  steps_.clear();
  seen.noise_scale = noise_.value();
  seen.not_finite = not_finite_;
  return seen;
}

void StepLog::add_program(std::int64_t step, std::int64_t epoch, const observe::Values& values) {
  if (metrics_ == nullptr) return;
  if (steps_.empty() || steps_.back().step != step)
    return metrics_->add("program", step, epoch, values);
  observe::Values& held = steps_.back().program;
  held.insert(held.end(), values.begin(), values.end());
}

// `means`: over the replicas, of the square norm and of 1 / samples.
void StepLog::add_noise(const Step& step, const double* means) {
  if (!step.noise || !step.grad_norm || step.skipped) return;
  noise_.add({.small_squares = means[0],
              .large_squares = *step.grad_norm * *step.grad_norm,
              .small_batch = 1 / means[1],
              .large_batch = step.samples});
}

// -1: all parts are finite, but their sum is not. Collective: the sum is the same on all ranks, so
// all ranks call this.
int StepLog::first_rank_not_finite(const Step& step) const {
  const bool good = std::all_of(step.losses.begin(), step.losses.end(),
                                [](double loss) { return std::isfinite(loss); });
  at::Tensor flags = at::zeros({world_.size()}, at::kDouble);
  flags[world_.rank()] = good ? 0 : 1;
  if (world_.size() > 1) world_.all_reduce(flags);
  const double* const bad = flags.const_data_ptr<double>();
  const double* const first = std::find(bad, bad + world_.size(), 1.0);
  return first == bad + world_.size() ? -1 : static_cast<int>(first - bad);
}

template <class Of>
double StepLog::mean(const Of& of) const {
  double sum = 0;
  for (const Step& step : steps_) sum += of(step);
  return steps_.empty() ? 0 : sum / static_cast<double>(steps_.size());
}

observe::RankState StepLog::state() const {
  const comm::Traffic traffic = world_.traffic();
  return {.compute_ms = mean([](const Step& step) {
            return step.ms[static_cast<std::size_t>(Phase::kForward)] +
                   step.ms[static_cast<std::size_t>(Phase::kBackward)];
          }),
          .memory_bytes = static_cast<double>(observe::process_memory()),
          .sent_bytes = static_cast<double>(traffic.sent_bytes),
          .shared_bytes = static_cast<double>(traffic.shared_bytes),
          .waited_ms = mean([](const Step& step) { return 1e3 * step.waited_s; }),
          .step_ms = mean([](const Step& step) { return 1e3 * step.seconds; })};
}

// Memory, traffic, the slowest rank, its compute time divided by the median rank's, and the rank
// that the others wait for most.
observe::Values StepLog::group_values(std::span<const observe::RankState> ranks,
                                      std::span<const double> moved) const {
  observe::Values values{
      {"memory_gb", ranks[static_cast<std::size_t>(world_.rank())].memory_bytes / 1e9}};
  if (ranks.size() > 1 && world_.traffic().is_complete) {
    const double parts = static_cast<double>(steps_.size() * ranks.size());
    values.emplace_back("sent_mb", moved[0] / parts / 1e6);
    values.emplace_back("shared_mb", moved[1] / parts / 1e6);
  }
  if (ranks.size() > 1) {
    const auto most = std::ranges::max_element(ranks, {}, &observe::RankState::awaited_share);
    values.emplace_back("awaited_rank", static_cast<double>(most - ranks.begin()));
    values.emplace_back("awaited_share", most->awaited_share);
  }
  std::vector<double> sorted;
  for (const observe::RankState& rank : ranks) sorted.push_back(rank.compute_ms);
  std::sort(sorted.begin(), sorted.end());
  const double median = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  if (sorted.size() < 2 || median <= 0) return values;
  const auto slowest = std::ranges::max_element(ranks, {}, &observe::RankState::compute_ms);
  values.emplace_back("slowest_rank", static_cast<double>(slowest - ranks.begin()));
  values.emplace_back("slowest_over_median", slowest->compute_ms / median);
  return values;
}

void StepLog::write(const Step& step, double loss, const observe::Values& more) const {
  observe::Values values{
      {"loss", loss}, {"lr", step.rate}, {"samples_per_s", step.samples / step.seconds}};
  if (step.grad_norm) values.emplace_back("grad_norm", *step.grad_norm);
  if (step.noise) values.emplace_back("batch", step.samples);
  if (const auto scale = noise_.value()) values.emplace_back("noise_scale", *scale);
  if (skipped_ > 0) values.emplace_back("skipped_steps", static_cast<double>(skipped_));
  if (flops_.per_sample > 0 && flops_.peak > 0)
    values.emplace_back("mfu", flops_.per_sample * step.samples / step.seconds / flops_.peak);
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) {
    values.emplace_back(std::string(observe::to_string(static_cast<observe::Phase>(phase))) + "_ms",
                        step.ms[phase]);
  }
  values.insert(values.end(), more.begin(), more.end());
  metrics_->add("train", step.step, step.epoch, values);
}

}  // namespace weft::train::internal
