#include "weft/train/internal/loop.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/train/internal/newest_run.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

}  // namespace

Loop::Loop(const Config& config, Group world, TrainerOptions options)
    : config_(config),
      world_(std::move(world)),
      options_(std::move(options)),
      started_(Clock::now()),
      tracing_(world_, options_.trace.empty() ? TraceSteps{} : parse_trace(options_.trace)),
      max_steps_(config.get_int("train.max_steps")) {}

void Loop::open() {
  progress_.emplace(observe::Progress::Options{.mode = options_.progress, .rank = world_.rank()});
  if (world_.rank() == 0) {
    observe::RunFolderOptions run{config_.get_string("run.dir"), config_.get_string("run.name"), options_.recipe, options_.resume};
    if (run.resume && run.name.empty()) run.name = newest_run(run.parent, options_.recipe);
    folder_ = std::make_unique<observe::RunFolder>(run, config_);
    tracing_.write_to(folder_->path() + "/trace.json");
  }
  if (!options_.resume) return;
  resumed_ = load_latest(world_, folder_ ? folder_->checkpoint_path() : "");
  if (!resumed_) log_warn("the run has no checkpoint yet: starting from the beginning");
}

void Loop::start(Task& task, const Plan& plan) {
  task_ = &task;
  plan_ = plan;
  if (resumed_) {
    const Progressed progressed = unpack_progress(*resumed_, seed(), plan_.batches.global);
    task.restore(*resumed_, progressed.sampler);
    step_ = saved_step_ = progressed.step;
    epoch_ = progressed.sampler.epoch;
    in_epoch_ = (progressed.sampler.position + plan_.batches.global - 1) / plan_.batches.global;
    epoch_loss_ = progressed.epoch_loss;
    resumed_.reset();
    log_info("resuming", {{"step", step_}, {"epoch", epoch_}});
  }
  if (folder_) metrics_ = std::make_unique<observe::Metrics>(folder_->path(), step_ + 1);
  log_.emplace(world_, metrics_.get());
}

TrainResult Loop::run() {
  const observe::Trace::Use here(tracing_.trace(), "main");
  const auto epochs = config_.get_int("train.epochs");
  while (epoch_ < epochs && !at_end()) run_epoch();
  if (!stop_ && evaluated_step_ != step_) evaluate();
  if (saved_step_ != step_ && config_.get_int("train.checkpoint_every") > 0) save();
  task_->settle();
  tracing_.finish();
  if (metrics_) metrics_->flush();
  world_.barrier();  // nobody leaves before all have what they need
  TrainResult result;
  result.ranks = world_.size();
  result.epochs = epoch_;
  result.steps = step_;
  result.accuracy = evaluation_.accuracy;
  result.loss = evaluation_.loss;
  result.samples_per_s = training_s_ > 0 ? trained_samples_ / training_s_ : 0;
  result.seconds = seconds_since(started_);
  result.stopped = stop_;
  return result;
}

void Loop::run_epoch() {
  const std::int64_t steps = plan_.batches.per_epoch, every = config_.get_int("train.log_every");
  progress_->start("epoch " + std::to_string(epoch_ + 1), steps, in_epoch_);
  const auto start = Clock::now();
  while (in_epoch_ < steps && !at_end()) {
    tracing_.before(step_ + 1);
    step();
    tracing_.after(step_);
    if (step_ % every == 0 || in_epoch_ == steps || at_end()) look();
    progress_->update(in_epoch_, {{"loss", last_loss_}});
    if (in_epoch_ < steps && !at_end()) evaluate_within();
  }
  training_s_ += seconds_since(start);
  progress_->finish();
  if (in_epoch_ == steps) end_of_epoch();
}

void Loop::step() {
  const auto start = Clock::now();
  const observe::TraceScope whole("step", "step");
  timer_.reset();
  const double lr = plan_.rate.at(static_cast<double>(step_) / static_cast<double>(plan_.batches.per_epoch));
  Task::Step done = task_->step(lr, timer_);
  StepLog::Step record{step_ + 1, epoch_, lr, done.samples, seconds_since(start), {}, std::move(done.losses)};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) record.ms[phase] = timer_.ms(static_cast<Phase>(phase));
  log_->add(std::move(record));
  trained_samples_ += done.samples;
  ++step_;
  ++in_epoch_;
}

// Takes the losses of the last steps together over the ranks, and agrees on stopping.
void Loop::look() {
  const auto seen = log_->reduce(epoch_loss_, options_.should_stop && options_.should_stop());
  epoch_loss_ = seen.sum;
  last_loss_ = seen.loss;
  stop_ = seen.stop;
  task_->looked();
}

void Loop::end_of_epoch() {
  task_->end_epoch();
  const double loss = epoch_loss_ / static_cast<double>(plan_.samples);
  ++epoch_;
  in_epoch_ = 0;
  epoch_loss_ = 0;
  const bool last = epoch_ == config_.get_int("train.epochs");
  const auto due = [&](const char* key) {
    const auto every = config_.get_int(key);
    return every > 0 && (last || epoch_ % every == 0);
  };
  if (due("train.eval_every") || last) evaluate();
  if (due("train.checkpoint_every")) save();
  std::vector<LogField> fields{{"epoch", epoch_}, {"train_loss", rounded(loss)}, {"test_loss", rounded(evaluation_.loss)}};
  fields.emplace_back("accuracy", rounded(evaluation_.accuracy));
  for (LogField& field : task_->epoch_fields(evaluation_, trained_samples_ / training_s_)) fields.push_back(std::move(field));
  const observe::Values more = task_->epoch_values();
  if (metrics_ && !more.empty()) metrics_->add("train", step_, epoch_, more);
  for (const auto& [name, value] : more) fields.emplace_back(name, rounded(value));
  log_info("epoch done", fields);
}

// Its time is no part of the training's.
void Loop::evaluate_within() {
  const auto every = config_.get_int("train.eval_steps");
  if (every == 0 || step_ % every != 0) return;
  const auto start = Clock::now();
  evaluate();
  training_s_ -= seconds_since(start);
}

void Loop::evaluate() {
  task_->settle();
  evaluation_ = task_->evaluate();
  evaluated_step_ = step_;
  if (metrics_) metrics_->add("test", step_, epoch_, {{"accuracy", evaluation_.accuracy}, {"test_loss", evaluation_.loss}});
}

// Rank 0 writes; the others meet it at the next step.
void Loop::save() {
  saved_step_ = step_;
  task_->settle();
  const auto packed = task_->pack({step_, task_->position(), epoch_loss_, seed(), plan_.batches.global});
  if (!folder_) return;
  const auto saved = checkpoint::save(folder_->checkpoint_path(), packed, {static_cast<int>(config_.get_int("train.keep"))});
  log_debug("checkpoint", {{"folder", saved}});
}

}  // namespace weft::train::internal
