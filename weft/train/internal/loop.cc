// Ranks agree in look(), by one all-reduce every few steps, and on the wishes of callbacks also
// after an epoch. Whatever changes what they do next follows from numbers that are the same on all
// ranks: the number of the step, the options, and what was reduced. A wish of one rank (to stop,
// save or resize) does nothing before the next look(). A rank that acted on it alone would enter a
// collective that the others do not.
//
//   step ── look ── compare replicas ── evaluate ── save ── copy ── step …
//
// Each of these is done only if it is due. The order has reasons:
//
//   look      first: it tells whether the losses are finite. A run that resumes must find the
//             metrics of all steps before
//   compare   before a save: the state of a replica that differs must not become a checkpoint
//   evaluate  before a save: the best evaluation asks for a checkpoint of the same step
//
// One thread per rank runs the loop. Checkpoints are written in a thread of AsyncSaver.
#include "weft/train/internal/loop.h"

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/observe/position/position.h"
#include "weft/optim/learning_rate.h"
#include "weft/rank_link/messages.h"
#include "weft/train/internal/batch_schedule.h"

namespace weft::train::internal {

Loop::Loop(Options options, const Config& config, Group world, bool copies)
    : options_(std::move(options)),
      config_(config),
      world_(std::move(world)),
      limits_(options_, at_),
      requests_(options_, world_, copies),
      tracing_(world_, options_.trace.empty() ? TraceSteps{} : parse_trace(options_.trace)),
      output_(options_, config_, world_),
      resumption_(options_, config_, world_),
      recorder_(options_, world_, output_),
      health_(options_, world_),
      evaluations_(options_),
      checkpoints_(options_, world_) {}

void Loop::open(std::optional<Saved> state) {
  output_.open();
  if (!output_.path().empty()) tracing_.write_to(output_.path() + "/trace.json");
  resumption_.open(std::move(state), output_.checkpoint_path());
}

void Loop::start(Learner& learner, EpochFields fields, Throughput throughput) {
  learner_ = &learner;
  at_.epoch_steps = steps_per_epoch();
  Best::check(options_, learner.metrics(), learner.has_test_data());
  decisions_.emplace(options_, world_);
  const bool recovers = resumption_.recovers();
  const auto resumed = resumption_.restore(learner);
  if (resumed) {
    at_ = resumed->count;
    evaluations_.restore(resumed->evaluated_step);
    decisions_->restore(resumed->best);
    decisions_->callbacks().add_requests(resumed->asked);
    if (!recovers) log_info("resuming", {{"step", at_.step}, {"epoch", at_.epoch}});
    if (!recovers && is_over()) say_that_nothing_is_left();
  }
  const StepLog::Flops flops{learner.flops_per_sample(),
                             options_.peak_tflops * 1e12 * static_cast<double>(world_.size())};
  output_.start(at_.step, recovers, flops, throughput);
  output_.set_epoch_fields(std::move(fields));
  recorder_.start(learner, flops);
  if (resumed) {
    recorder_.log().restore_noise(resumed->noise);
    recorder_.restore(resumed->left_out);
  }
  requests_.start(at_.step);
  tracing_.start(at_.step, /*tells=*/!recovers);
  recorder_.note(at_.step, learner.position(), /*ready=*/true);
  const bool copies = requests_.resizes();
  if (copies || checkpoints_.are_on()) check_savable(world_, learner.parts(copies));
  checkpoints_.start(output_.checkpoint_path(), at_.step, resumed && !recovers, copies);
  checkpoints_.set_damaged(resumption_.damaged());
  if (resumed && recovers) checkpoints_.keep_interval();
  copy_state();
  if (checkpoints_.are_on()) checkpoints_.make_saver(learner, decisions_->kept_best());
}

void Loop::say_that_nothing_is_left() const {
  std::vector<std::string> keys;
  if (limits_.has_all_epochs()) keys.emplace_back("train.epochs");
  if (limits_.has_all_steps()) keys.emplace_back("train.max_steps");
  const std::string& reason = decisions_->reason();
  if (!reason.empty()) keys.emplace_back("train.patience");
  log_info("nothing is left to train: raise " + joined(keys, " and ") + " to go on" +
               (reason.empty() ? "" : "; " + reason),
           {{"epochs", options_.epochs},
            {"max_steps", options_.max_steps},
            {"patience", options_.patience}});
}

void Loop::watch_plan(const StepParts& expected, PlanAnswer answer) {
  if (is_shared() || expected.step <= 0) return;
  recorder_.measures().watch(expected, std::move(answer));
}

std::optional<TrainResult> Loop::run() {
  const observe::Trace::Use here(tracing_.trace(), "main");
  output_.line().start_run(limits_.batches(steps_per_epoch()), at_.batches(steps_per_epoch()));
  if (evaluation_is_left()) {
    evaluate();
    if (decisions_->save_is_due()) save();
  }
  while (!is_over() && !limits_.pauses()) run_epoch();
  if (limits_.pauses()) take_last_requests();
  // The ranks go on from the copies, so a save that fails here is only logged.
  if (limits_.resize() != 0 && !is_over()) {
    checkpoints_.settle();
    copy_state(/*now=*/true);
    return std::nullopt;
  }
  // The next plan goes on from this checkpoint, so an error of it ends these ranks. Where the
  // launcher replaces them, they go on from the checkpoint before.
  if (limits_.changes_plan() && !is_over()) {
    if (!checkpoints_.has(at_.step)) save_now();
    checkpoints_.finish(/*ends=*/false);
    return std::nullopt;
  }
  limits_.change_plan(false);
  // The result has an evaluation of this process, also if one before has made it.
  const bool is_evaluated = evaluations_.step() == at_.step && evaluations_.last().samples > 0;
  if (!limits_.is_cut() && !is_evaluated) evaluate();
  if (last_save_is_due()) save();
  end_run();
  return result();
}

void Loop::run_epoch() {
  const std::int64_t steps = at_.epoch_steps;
  output_.line().start(
      "epoch " + std::to_string(at_.epoch + 1) + "/" + std::to_string(options_.epochs), steps,
      at_.in_epoch);
  output_.speed().begin();
  while (at_.in_epoch < steps && !at_end() && !limits_.pauses()) {
    advance();
    health_.compare_replicas(*learner_, at_.step);  // before a checkpoint of this step is saved
    output_.line().update(at_.in_epoch, output_.shown());
    if (at_.in_epoch == steps || at_end()) continue;
    evaluate_within();
    save_within();
    copy_state();
  }
  output_.speed().end();
  output_.line().finish();
  if (at_.in_epoch == steps) end_of_epoch();
  if (!at_end()) copy_state();
}

void Loop::advance() {
  if (is_shared()) return run_shared();
  tracing_.before(at_.step + 1);
  StepReport report = step();
  tracing_.after(at_.step);
  if (look_is_due()) report.loss = look();
  tell_step(report);
}

StepReport Loop::step() {
  const observe::TraceScope whole("step", "step");
  recorder_.begin(at_.step + 1);
  const double lr = learning_rate();
  const data::SamplerState begin = learner_->position();
  Learner::Step done = learner_->step(at_.step + 1, lr, recorder_.timer(),
                                      std::min(at_.passes, at_.epoch_steps - at_.in_epoch));
  const std::int64_t passes = done.passes;
  StepLog::Step record = recorder_.end(std::move(done), at_.epoch, lr);
  const StepReport report{record.step, at_.epoch, lr, record.samples, record.seconds};
  const bool is_bad = record.skipped && !parallel::scales_loss(options_.plan);
  record.bad_gradient = is_bad && learner_->workers() == nullptr;  // the same on all ranks
  if (record.skipped) {
    if (const auto end = health_.watch_gradients(*learner_, record.step)) {
      const bool saves = checkpoints_.are_on();
      if (saves && !checkpoints_.has(at_.step)) {
        learner_->set_position(begin);  // the run resumes with the batch of this step
        look_before_save();
        save_now();  // also after a step that was skipped: the weights are good
      }
      end_with(*end, saves);
    }
  }
  health_.count_skipped(*learner_, record.step, is_bad);
  checkpoints_.add_step(record.seconds);
  recorder_.add(std::move(record));
  ++at_.step;
  at_.in_epoch += passes;
  recorder_.note(at_.step, learner_->position());
  return report;
}

double Loop::learning_rate() const {
  optim::LearningRate rate = options_.schedule;  // in epochs
  rate.base = learner_->batches().base_rate;
  if (rate.period <= 0)
    rate.period = static_cast<double>(std::max<std::int64_t>(1, options_.epochs));
  return rate.at(at_.epochs());
}

bool Loop::look_is_due() const {
  return requests_.is_due(at_.step) || at_.at_end_of_epoch() || at_end() ||
         checkpoints_.steps_due(at_.step) || checkpoints_.copy_is_due(at_.step) ||
         evaluations_.is_due(at_.step);
}

// Reduces the losses of the last steps over the ranks and agrees on whether to stop. Returns the
// loss of the last step.
double Loop::look() {
  const bool show_ranks = output_.shows_ranks(at_end() || at_.at_end_of_epoch());
  const bool wishes_to_stop = requests_.take_stop();
  const Callbacks::Requests asked = decisions_->callbacks().take_requests();
  auto seen =
      recorder_.log().reduce(at_.epoch_loss,
                             {.stop = wishes_to_stop,
                              .end = asked.stop,
                              .save = asked.save,
                              .save_by_time = world_.rank() == 0 && checkpoints_.minutes_due(),
                              .ranks = requests_.ranks()},
                             show_ranks);
  if (wishes_to_stop) rank_link::tell_launcher(rank_link::Stopping{});
  if (wishes_to_stop && seen.stops < world_.size())
    log_warn("this rank was told to stop: all ranks stop after this step", {{"step", at_.step}});
  recorder_.show(seen);
  at_.epoch_loss = seen.sum;
  at_.epoch_samples += seen.samples;
  limits_.agree(seen.stop, requests_.new_ranks(seen.ranks));
  if (seen.end) end_early();
  checkpoints_.request(seen.save, seen.save_by_time);
  if (at_.step % options_.log_every == 0) {  // other calls depend on times
    at_.passes = next_passes(at_.passes, seen.noise_scale, learner_->batches().global,
                             learner_->max_passes());
  }
  output_.line().change_run(limits_.batches(steps_per_epoch()));
  requests_.looked(at_.step, seen.step_s);
  output_.watch_folder();
  if (world_.rank() == 0 && show_ranks) rank_link::tell_launcher(rank_link::StepsDone{at_.step});
  if (const auto end = health_.watch_numbers(seen.not_finite)) {
    const bool saves = options_.plan.skip_not_finite && checkpoints_.are_on();
    if (saves && !checkpoints_.has(at_.step)) save_now();
    end_with(*end, saves);
  }
  const auto slow = health_.watch_stragglers(seen);
  if (slow && !slow->empty() && options_.on_straggler == OnStraggler::kRebalance)
    learner_->start_balancing();
  answer_departure();
  checkpoints_.poll();
  learner_->rebalance();
  return seen.loss;
}

// All ranks decide by the same numbers. A change of the plan goes on from a checkpoint. So it waits
// while the weights may not be finite, and where the ranks go on from copies, in another number.
void Loop::answer_departure() {
  if (limits_.resize() != 0 || !health_.is_finite()) return;
  const auto change =
      recorder_.measures().look(limits_.steps_left(steps_per_epoch()), checkpoints_.are_on());
  if (change == StepMeasures::Change::kBalance) learner_->start_balancing();
  if (change == StepMeasures::Change::kPlan) limits_.change_plan(true);
}

void Loop::end_of_epoch() {
  learner_->end_epoch();
  const double loss = at_.epoch_loss / at_.epoch_samples;  // NaN if all steps were skipped
  ++at_.epoch;
  at_.in_epoch = 0;
  at_.epoch_steps = steps_per_epoch();
  at_.epoch_loss = at_.epoch_samples = 0;
  const bool last = at_.epoch == options_.epochs;
  const auto due = [&](std::int64_t every) {
    return every > 0 && (last || at_.epoch % every == 0);
  };
  if (due(options_.eval_every) || evaluations_.is_due(at_.step) || last) evaluate();
  tell_epoch(loss);
  if (due(options_.checkpoint_every) || save_is_due()) save();
  log_epoch(loss);
}

void Loop::log_epoch(double train_loss) {
  observe::Values experts;
  if (const auto use = learner_->expert_use())
    experts = {{"expert_load_max", use->load_max}, {"expert_dropped", use->dropped}};
  const bool is_evaluated = evaluations_.step() == at_.step;
  output_.log_epoch(at_, train_loss, is_evaluated ? evaluations_.last() : Evaluation{}, experts);
}

void Loop::end_run() {
  observe::set_activity(observe::Activity::kEnd);
  learner_->model().wait_for_weights();
  checkpoints_.finish();
  if (is_shared()) {
    tracing_.meet(at_.step, /*is_end=*/true);
    recorder_.reports()->show_staleness(at_);
  } else {
    tracing_.finish();
  }
  output_.flush();
  recorder_.measures().finish();
  world_.barrier();  // no rank leaves while others still need it
  output_.write_report();
}

TrainResult Loop::result() const {
  TrainResult result;
  result.ranks = world_.size();
  result.epochs = at_.epoch;
  result.steps = at_.step;
  const Evaluation& evaluation = evaluations_.last();
  result.loss = evaluation.loss;
  result.metrics = evaluation.metrics;
  result.accuracy = evaluation.metric("accuracy");
  result.samples_per_s = output_.speed().mean();
  result.seconds = output_.speed().all_seconds();
  result.stopped = limits_.is_cut();
  result.ended_early = decisions_->ends() && !limits_.is_complete();
  if (const BestMark best = decisions_->best(); best.step >= 0) {
    result.best_step = best.step;
    result.best = best.value;
  }
  return result;
}

// From one meeting to the next.
void Loop::run_shared() {
  const std::int64_t first = at_.step - at_.in_epoch;
  WorkerReports& reports = *recorder_.reports();
  reports.begin(at_);
  requests_.begin_batches();
  learner_->begin_batches(at_.in_epoch, next_meeting(), at_.step);
  while (const auto taken = learner_->take_batch()) {
    at_.in_epoch = *taken;
    // A step is a whole batch, of which workers take parts when they are ready. So ranks are at
    // different steps until they meet.
    at_.step = first + *taken;
    tracing_.before(at_.step + 1);
    tell_step(step());
    reports.report(at_, /*last=*/false);
    if (wants_meeting()) learner_->shared()->close();
  }
  at_.in_epoch = learner_->end_batches();
  at_.step = first + at_.in_epoch;
  tracing_.meet(at_.step);
  reports.report(at_, /*last=*/true);
  look();
}

// A step within the epoch, like in_epoch.
std::int64_t Loop::next_meeting() const {
  std::int64_t next = at_.step - at_.in_epoch + at_.epoch_steps;
  for (const std::int64_t every : {options_.eval_steps, options_.checkpoint_steps}) {
    if (every > 0) next = std::min(next, at_.step - at_.step % every + every);
  }
  if (options_.max_steps > 0) next = std::min(next, options_.max_steps);
  for (std::int64_t step = at_.step + 1; checkpoints_.copies_on() && step < next; ++step) {
    if (checkpoints_.copy_is_due(step)) next = step;
  }
  return next - at_.step + at_.in_epoch;
}

bool Loop::wants_meeting() {
  const auto bad = learner_->shared()->not_finite().batches;
  if (options_.max_not_finite > 0 && bad >= options_.max_not_finite) return true;
  if (!requests_.poll_is_due(at_.step)) return false;
  return requests_.polls() || decisions_->callbacks().has_requests() ||
         (world_.rank() == 0 && checkpoints_.minutes_due());
}

// A run that is asked to stop has little time, so the resumed run evaluates its last step.
bool Loop::evaluation_is_left() const {
  return at_.step > 0 && evaluations_.is_due(at_.step) && evaluations_.step() != at_.step &&
         !at_.at_end_of_epoch() && !is_over();
}

// Its time does not count as training time. look() has written the metrics of the steps before.
void Loop::evaluate_within() {
  if (!evaluations_.is_due(at_.step)) return;
  const auto start = TrainingSpeed::Clock::now();
  evaluate();
  output_.speed().leave_out(start);
}

void Loop::evaluate() {
  const observe::ActivityScope activity(observe::Activity::kEvaluation);
  const Evaluation& evaluation = evaluations_.evaluate(*learner_, at_.step);
  if (evaluation.samples == 0) return;
  decisions_->evaluated(evaluation, at_.step);
  if (!decisions_->reason().empty()) end_early();
  output_.add_evaluation(at_, evaluation);
}

void Loop::tell_step(const StepReport& report) {
  // The program may read weights in ways that the overlap with forward does not see (data_ptr()).
  if (options_.on_step) learner_->model().wait_for_weights();
  decisions_->callbacks().step_done(report);
  add_logged();
}

// After the evaluation of the epoch, before its checkpoint.
void Loop::tell_epoch(double train_loss) {
  EpochReport report{at_.epoch, at_.step, train_loss};
  if (const Evaluation& evaluation = evaluations_.last(); evaluation.samples > 0) {
    report.test_loss = evaluation.loss;
    report.metrics = evaluation.metrics;
  }
  const bool agrees = decisions_->callbacks().epoch_done(report);
  add_logged();
  if (!agrees) return;
  const Callbacks::Requests all = decisions_->callbacks().agree(world_);
  if (all.stop) end_early();
  if (all.save) checkpoints_.ask();
}

// Callbacks may have asked after the last look(), and the next session has others. Collective.
void Loop::take_last_requests() {
  const Callbacks::Requests all = decisions_->callbacks().agree(world_);
  if (all.stop) end_early();
  if (!all.save || checkpoints_.has(at_.step)) return;
  checkpoints_.ask();
  save();
}

// Values that callbacks have logged, to the files and the progress line.
void Loop::add_logged() {
  const observe::Values logged = decisions_->callbacks().take_logged();
  if (logged.empty() || output_.metrics() == nullptr) return;
  recorder_.log().add_program(at_.step, at_.epoch, logged);
  output_.add_logged(logged);
}

void Loop::end_early() {
  if (limits_.is_complete()) return;
  if (!decisions_->end() || world_.rank() != 0) return;
  const std::string& reason = decisions_->reason();
  log_info("training ends early: " + (reason.empty() ? "a callback has asked for it" : reason),
           {{"step", at_.step}, {"epoch", at_.epoch}});
}

bool Loop::save_is_due() const {
  return checkpoints_.is_due(at_.step) || decisions_->save_is_due();
}

// A callback may have asked after the last look(). The checkpoint of this step is saved again if
// the evaluation after it is the best so far. Collective.
bool Loop::last_save_is_due() {
  if (decisions_->save_is_due()) return true;
  if (checkpoints_.has(at_.step)) return false;
  if (checkpoints_.are_on() || limits_.is_cut() || decisions_->ends() || save_is_due()) return true;
  const Callbacks::Requests asked = decisions_->callbacks().agree(world_);
  return asked.save || asked.stop;
}

// Its time does not count as training time. That of look() does, and another window of the shown
// speed begins there.
void Loop::save_within() {
  if (!save_is_due()) return;
  look_before_save();
  const auto start = TrainingSpeed::Clock::now();
  save();
  output_.speed().leave_out(start);
}

// A run that resumes here must find the metrics of all steps until here. They also tell whether the
// loss is finite.
void Loop::look_before_save() {
  if (!requests_.has_looked(at_.step) && !is_shared()) look();
}

// Skipped steps leave the weights as they were, but these may be why the loss is not finite: a
// checkpoint that is only due by its period must not take the place of a good one.
void Loop::save() {
  look_before_save();
  const bool is_wanted =
      decisions_->save_is_due() || checkpoints_.is_asked_for() || at_end() || limits_.is_complete();
  if (health_.is_finite() || (options_.plan.skip_not_finite && is_wanted)) save_now();
}

void Loop::save_now() {
  decisions_->saved();
  checkpoints_.save(*learner_, progressed(), decisions_->kept_best());
}

// Ends the run, after the last save if it `saves`. The same on all ranks.
void Loop::end_with(const Error& error, bool saves) {
  if (saves) checkpoints_.finish();
  throw error;
}

// Does nothing where no copy is due. look() came before. Else the state would lack the losses of
// the last steps, and a request that look() takes could not end training before the copy. Callbacks
// were called after look(), and are not called for this step again. So their requests are copied.
void Loop::copy_state(bool now) {
  if (!checkpoints_.copies_on() || (!now && !checkpoints_.copy_is_due(at_.step))) return;
  const observe::ActivityScope activity(observe::Activity::kCheckpoint);
  Progressed copied = progressed();
  copied.asked = decisions_->callbacks().share(world_);
  checkpoints_.copy(*learner_, copied);
}

Progressed Loop::progressed() const {
  return {.step = at_.step,
          .sampler = learner_->position(),
          .epoch_loss = at_.epoch_loss,
          .epoch_samples = at_.epoch_samples,
          .seed = options_.plan.seed,
          .batch = learner_->division(),
          .asked_batch = asked_batch(config_),
          .noise = recorder_.log().noise(),
          .passes = at_.passes,
          .best = decisions_->state(),
          .samples = learner_->samples(),
          .evaluated_step = evaluations_.step(),
          .left_out = recorder_.left_out()};
}

}  // namespace weft::train::internal
