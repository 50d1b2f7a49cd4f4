#include "weft/train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/comm/texts.h"
#include "weft/elastic/newest_state.h"
#include "weft/elastic/recovery.h"
#include "weft/observe/memory.h"
#include "weft/observe/position/position.h"
#include "weft/observe/run/metric_names.h"
#include "weft/train/internal/key_uses.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/planned_model.h"
#include "weft/train/internal/planner.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/probe.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/internal/trained_weights.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

void check_task(const Task& task) {
  WEFT_REQUIRE(!task.model.blocks.empty(),
               "the task has no model: give blocks_of(module), or a list of blocks");
  WEFT_REQUIRE(task.model.loss,
               "the task has no loss: give a function of the model's output and the target");
  WEFT_REQUIRE(task.train.make && task.train.size > 0,
               "the task has no training data: give samples(…) or dataset(…) that is not empty");
  WEFT_REQUIRE(task.test.make || task.test.size == 0,
               "the task's test data has a size and no samples");
  std::set<std::string> names;
  for (const Metric& metric : task.metrics) {
    WEFT_REQUIRE(metric.of, "the metric '" + metric.name + "' has no function");
    WEFT_REQUIRE(!metric.name.empty(), "a metric has no name");
    WEFT_REQUIRE(metric.name == "loss" || !observe::is_of_weft(metric.name),
                 "the metric '" + metric.name +
                     "' has the name of one of weft's own metrics; choose another name");
    WEFT_REQUIRE(names.insert(metric.name).second,
                 "two metrics have the name '" + metric.name + "'");
  }
}

Options of_recipe(const Config& config, const TrainerOptions& with) {
  Options options = options_of(config);
  options.program = with.recipe;
  options.resume = with.resume;
  options.trace = with.trace;
  options.progress = with.progress;
  options.should_stop = with.should_stop;
  options.on_step = with.on_step;
  options.on_epoch_end = with.on_epoch_end;
  options.components = with.components;
  return options;
}

// A program's configuration, with the keys that loading a recipe fills in.
Config completed(Config config) {
  internal::take_pretrained(config);
  return config;
}

std::unique_ptr<internal::RecipeTask> checked_recipe(const Config& config, const Group& world,
                                                     const TrainerOptions& options,
                                                     internal::Begin begin) {
  check_recipe(config);
  return is_text(config) ? internal::text_task(config, world, begin)
                         : internal::image_task(config, options);
}

// All that belongs to one incarnation of the group.
struct Session {
  Session(const Options& options, const Config& config, const Group& world, bool copies)
      : mesh(world, options.mesh.axes()), loop(options, config, world, copies) {}

  const Mesh mesh;
  internal::Loop loop;  // before the learner: its trace must outlive the learner's thread
  std::optional<internal::Learner> learner;
};

// Multiples of the product of the axes that keep their size, and replicas among which the
// micro-shards and the batch can be divided. Another plan is made for any number of ranks.
rank_link::UsableRanks usable_ranks(const internal::RunPlan& plan) {
  if (plan.is_auto()) return {};
  const Options& options = plan.options();
  const bool grows = options.batch_per_rank > 0 || options.on_resize == OnResize::kScale;
  const auto most = std::min<std::int64_t>(options.batch, std::numeric_limits<int>::max());
  return {.multiple = plan::fixed_size(options.mesh.axes()),
          .shards = options.plan.micro_shards,
          .replicas = grows ? 0 : static_cast<int>(most)};
}

// The mesh for the number of ranks with which a job begins that may have another number later.
plan::MeshSpec fitted(const plan::MeshSpec& mesh, int ranks) {
  int product = 1;
  for (const plan::Axis& axis : mesh.axes()) product *= axis.size;  // 0: an axis takes the rest
  const bool fits = product == 0 || product == ranks;
  return fits ? mesh : plan::MeshSpec(plan::refit(mesh.axes(), ranks));
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(Task task, const Options& options, Group world)
      : plan_(options, config_of(options), /*is_recipe=*/false),
        task_(std::move(task)),
        recovery_(std::move(world), usable_ranks(plan_)) {
    check_task(*task_);
    name_idle_options();
    begin();
  }

  Impl(const Config& config, Group world, const TrainerOptions& options)
      : plan_(of_recipe(config, options), completed(config), /*is_recipe=*/true),
        recipe_options_(options),
        recovery_(std::move(world), usable_ranks(plan_)) {
    name_idle_options();
    begin();
  }

  TrainResult run() {
    if (const char* file = variable_or_null("WEFT_PROFILE")) return profile(file);
    for (;;) {
      try {
        if (recovery_.has_left()) return {.ranks = world().size(), .left = true};
        if (auto result = session_->loop.run()) {
          if (const auto mine = copies()) mine->keep_memory();
          internal::hand_over(*session_->learner, world());
          if (world().rank() == 0) plan_.report(session_->loop.measured());
          return *result;
        }
        if (session_->loop.changes_plan()) {
          change_plan();
          continue;
        }
        const int ranks = session_->loop.resize();
        if (world().rank() >= ranks) return leave(ranks);
        resize(ranks);
      } catch (const Error& error) {
        if (!recovery_.answers(error)) {
          give_up(error);
          throw;
        }
        recover(&error);
      } catch (const std::exception& error) {
        give_up(error);
        throw;
      }
    }
  }
  void save(const std::string& folder) { internal::save_weights(learner(), world(), folder); }
  parallel::ParallelModel& model() const { return learner().model(); }
  std::string run_folder() const { return session_ ? session_->loop.run_folder() : ""; }
  const Group& world() const { return recovery_.world(); }

 private:
  void name_idle_options() const;
  void begin();
  void begin_run();
  std::string begun_run() const;
  void read_recipe(internal::Begin begin, bool keeps);
  void make_plan();
  Task task_to_measure() const;
  void watch_plan();
  void change_plan();
  const Options& options() const { return plan_.options(); }
  internal::Learner& learner() const {
    WEFT_REQUIRE(session_ && session_->learner,
                 "this rank is no longer part of the job and has no model; after run(), use the "
                 "model only if TrainResult::left is false");
    return *session_->learner;
  }
  void make_session(const Options& given, internal::Begin begin,
                    std::optional<internal::Saved> state);
  void end_session();
  void make_again(const elastic::Brought& brought);
  void recover(const Error* why);
  void give_up(const std::exception& error) noexcept;
  void resize(int ranks);
  TrainResult leave(int ranks);
  std::shared_ptr<const elastic::StateCopies> copies() const;
  elastic::Recovery::Steps steps();
  void refuse_to_begin_again() const;
  void say_what_is_trained() const;
  TrainResult profile(const std::string& file);

  internal::RunPlan plan_;
  const std::optional<Task> task_;  // the program's own, unless there is a recipe
  const TrainerOptions recipe_options_;
  elastic::Recovery recovery_;
  std::unique_ptr<internal::RecipeTask> recipe_;
  std::string run_name_;   // on all ranks, where recovery is on
  std::string begun_run_;  // on rank 0: folder of the last session, also if it was not completed
  double made_in_s_ = 0;   // seconds that the session took to make
  std::optional<internal::TrainingSpeed::Totals> totals_;  // of the sessions before
  std::unique_ptr<Session> session_;
  // Of the session before a change of plan, until the next session begins.
  std::shared_ptr<const elastic::StateCopies> former_copies_;
  // The same ones until all ranks have copies of the next session. Other ranks may read them. This
  // rank recovers from the checkpoint then: copies of one step under two plans must not be mixed.
  std::shared_ptr<const elastic::StateCopies> retired_copies_;
};

// After an error of this rank alone, such as of its data, so that no other rank waits for it. A
// lost peer may be known to one of the model's groups only.
void Trainer::Impl::give_up(const std::exception& error) noexcept {
  try {
    elastic::keep_until_exit(copies());  // the others may recover from them
    elastic::keep_until_exit(retired_copies_);
    if (code_of(error) == Errc::kAborted) return;  // another rank has told the cause
    const Error why(Errc::kAborted,
                    "rank " + std::to_string(world().rank()) + " ended with: " + describe(error));
    if (session_ != nullptr && session_->learner) {
      model().abort(why);
    } else {
      world().abort(why);
    }
  } catch (const std::exception&) {  // if the abort fails, the peers run into their deadlines
  }
}

// In warnings of rank 0. weft train names the other keys of a recipe before it starts ranks.
void Trainer::Impl::name_idle_options() const {
  if (recovery_.is_newcomer() || world().rank() != 0) return;
  if (task_) {
    for (const std::string& line : internal::idle_options(options())) log_warn(line);
  }
  if (const auto line = internal::idle_copies(plan_.config(), recovery_.is_on())) log_warn(*line);
}

void Trainer::Impl::begin() {
  observe::set_activity(observe::Activity::kInit);
  if (recovery_.is_newcomer()) return recover(nullptr);
  try {
    if (!recovery_.fit(steps(), options().should_stop)) begin_run();
  } catch (const Error& error) {
    if (!recovery_.answers(error)) throw;
    recover(&error);
  }
}

// The folder of the run that this job has begun before, if there is one: its ranks were lost while
// they began to train, or all were lost and the launcher has started them again. Collective.
std::string Trainer::Impl::begun_run() const {
  // A survivor of the start has no such variable.
  const std::string mine = !begun_run_.empty() ? begun_run_ : variable("WEFT_RESUME_RUN");
  std::string run;
  for (const std::string& one : comm::all_gather_texts(world(), mine)) {
    if (run.empty()) run = one;
  }
  const bool exists = world().rank() == 0 && std::filesystem::exists(run + "/config.toml");
  return comm::broadcast_text(world(), exists ? run : "");
}

// The first session of the job.
void Trainer::Impl::begin_run() {
  make_plan();
  Options options = this->options();
  if (recovery_.may_resize()) options.mesh = fitted(options.mesh, world().size());
  if (const std::string run = recovery_.is_on() ? begun_run() : ""; !run.empty()) {
    const std::filesystem::path folder(run);
    options.dir = folder.parent_path().string();
    options.name = folder.filename().string();
    options.resume = true;
  }
  make_session(options, options.resume ? internal::Begin::kResumed : internal::Begin::kNew, {});
  if (recovery_.is_on()) {
    run_name_ =
        comm::broadcast_text(world(), std::filesystem::path(run_folder()).filename().string());
  }
}

// The task and data of a recipe. A file may be missing on one host only.
void Trainer::Impl::read_recipe(internal::Begin begin, bool keeps) {
  if (task_) return;
  comm::together(world(), [&] {
    if (!keeps) recipe_ = checked_recipe(plan_.config(), world(), recipe_options_, begin);
  });
}

void Trainer::Impl::make_plan() {
  if (!plan_.is_on()) return;
  read_recipe(internal::Begin::kNew, /*keeps=*/false);
  plan_.begin(task_to_measure(), world());
}

// The task of a recipe with images is kept; a text is read into the run folder later.
Task Trainer::Impl::task_to_measure() const {
  if (task_) return *task_;
  const Config& config = plan_.config();
  return is_text(config) ? internal::text_profile_task(config, internal::vocabulary_of(config, 0))
                         : recipe_->make("");
}

void Trainer::Impl::watch_plan() {
  if (!plan_.is_auto() || plan_.planned() == nullptr) return;
  session_->loop.watch_plan(
      plan_.planned()->parts, [this](const internal::Departure& departure, std::int64_t left) {
        constexpr double kSaveAndLoad = 2;  // seconds, besides making the session
        return plan_.helps(departure, left, made_in_s_ + kSaveAndLoad, world());
      });
}

// From the checkpoint that the loop has just saved.
void Trainer::Impl::change_plan() {
  const observe::ActivityScope activity(observe::Activity::kInit);
  const std::filesystem::path folder(run_folder());
  run_name_ = comm::broadcast_text(world(), folder.filename().string());
  former_copies_ = session_->loop.copies();  // another rank may still recover from them
  end_session();
  plan_.try_next(task_to_measure(), world());
  Options options = this->options();
  options.resume = true;
  options.name = run_name_;
  make_session(options, internal::Begin::kAgain, {});
  retired_copies_.reset();
}

void Trainer::Impl::make_session(const Options& given, internal::Begin begin,
                                 std::optional<internal::Saved> state) {
  const bool again = begin == internal::Begin::kAgain;
  const auto start = std::chrono::steady_clock::now();
  const Config& config = plan_.config();
  auto session = std::make_unique<Session>(given, config, world(), recovery_.is_on());
  // Images do not depend on the group, so they are kept. A new process reads them.
  read_recipe(begin, /*keeps=*/recipe_ != nullptr && !is_text(config));
  const auto check = [&](const Options& options) {
    internal::check_learner(task_ ? task_->model : recipe_->outline(), options, session->mesh,
                            task_ ? task_->train.size : 1);
  };
  if (!given.resume) check(given);
  internal::Loop& loop = session->loop;
  if (totals_) loop.go_on_from(*totals_);
  loop.open(std::move(state));
  begun_run_ = world().rank() == 0 ? loop.run_folder() : "";
  if (again && !loop.resumed()) refuse_to_begin_again();
  const Options options =
      loop.learner_options(internal::replicas(session->mesh.layout()), plan_.is_auto());
  // A run that resumes may go on with another batch than the given one.
  if (given.resume) check(options);
  if (options.plan.micro_batches != given.plan.micro_batches) {
    log_info("a rank takes its share in more passes, so that none is larger than before",
             {{"micro_batches", options.plan.micro_batches}});
  }
  Task task = task_ ? *task_ : recipe_->make(loop.run_folder());
  session->learner.emplace(std::move(task), options, session->mesh,
                           loop.resumed() ? &*loop.resumed() : nullptr, loop.trace());
  if (former_copies_ != nullptr) retired_copies_ = std::move(former_copies_);
  session_ = std::move(session);
  if (!again) say_what_is_trained();
  const auto fields = [this](const Evaluation& evaluation, double samples_per_s) {
    return recipe_ ? recipe_->epoch_fields(evaluation, samples_per_s)
                   : std::vector<LogField>{{"samples_per_s", rounded(samples_per_s, 0)}};
  };
  loop.start(*session_->learner, fields, recipe_ ? recipe_->throughput() : internal::Throughput{});
  watch_plan();
  // Gives back what planning, reading texts and reading a checkpoint have used.
  internal::release_memory(world());
  if (plan_.is_on()) observe::forget_peak_memory();
  made_in_s_ = seconds_since(start);
}

// Training goes on in another one.
void Trainer::Impl::end_session() {
  if (session_) totals_ = session_->loop.totals();
  session_.reset();
}

// The blocks of a recipe are made anew, with their initial weights. Those of a program are not.
void Trainer::Impl::refuse_to_begin_again() const {
  const auto is_own = [](const parallel::BlockSpec& spec) { return spec.own.has_value(); };
  if (!task_ || std::ranges::none_of(task_->model.blocks, is_own)) return;
  throw Error(Errc::kUnavailable,
              "cannot go on after the loss of a rank: no checkpoint and no whole copy of the state "
              "is left, and the initial weights of the program's modules are gone; start the job "
              "again, and set train.checkpoint_steps so that it has a checkpoint earlier");
}

void Trainer::Impl::say_what_is_trained() const {
  const auto& learner = *session_->learner;
  std::vector<LogField> line{{"ranks", world().size()},
                             {"mesh", session_->mesh.layout().describe()},
                             {"batch", learner.batches().global},
                             {"steps_per_epoch", learner.batches().per_epoch},
                             {"threads", at::get_num_threads()}};
  line.emplace_back("parameters", session_->learner->model().num_parameters());
  const auto about = recipe_ ? recipe_->about() : std::vector<LogField>{};
  line.insert(line.end(), about.begin(), about.end());
  line.emplace_back("run", run_folder());
  log_info("training " + options().program, line);
  if (const internal::Workers* const workers = session_->learner->workers(); workers != nullptr)
    log_info("strategy: " + workers->describe());
  std::istringstream passes(session_->learner->model().describe());
  for (std::string pass; std::getline(passes, pass);) log_info(pass);
}

// Measures the blocks instead of training, for `weft plan profile PROGRAM`.
TrainResult Trainer::Impl::profile(const std::string& file) {
  const internal::PlannerComponent& planner =
      internal::planner_of(options(), "weft plan profile PROGRAM");
  const Task task = task_ ? *task_ : recipe_->make(run_folder());
  const std::string profile = planner.profile(task, options(), world());
  if (world().rank() == 0) write_file_atomic(file, profile);
  world().barrier();
  return {.ranks = world().size()};
}

// Makes the session in the new group, from the newest state that its ranks hold.
void Trainer::Impl::make_again(const elastic::Brought& brought) {
  for (const std::string& name : comm::all_gather_texts(world(), run_name_)) {
    if (run_name_.empty()) run_name_ = name;
  }
  if (run_name_.empty()) return begin_run();  // no rank has begun to train
  plan_.again(world());
  Options options = this->options();
  options.resume = true;
  options.name = run_name_;
  options.mesh = plan::MeshSpec(plan::refit(options.mesh.axes(), world().size()));
  elastic::use_newest_state(
      world(), brought, [&](std::optional<elastic::Recovered> state, const std::string& missing) {
        if (!state && world().rank() == 0) {
          log_warn("no whole copy of the state is left in memory" +
                   (missing.empty() ? "" : ": " + missing + " are lost") +
                   "; training goes on from the newest checkpoint");
        }
        std::optional<internal::Saved> saved;
        if (state) {
          saved.emplace(std::move(state->reader));
          const plan::MeshLayout mesh(world().size(), options.mesh.axes());
          options = internal::resized(std::move(options), saved->batch(), internal::replicas(mesh),
                                      world().size());
        }
        make_session(options, internal::Begin::kAgain, std::move(saved));
      });
}

// This rank's newest copies of the state; null if it has none.
std::shared_ptr<const elastic::StateCopies> Trainer::Impl::copies() const {
  auto newest = session_ != nullptr ? session_->loop.copies() : nullptr;
  return newest != nullptr ? newest : former_copies_;
}

// What the recovery does around a new group.
elastic::Recovery::Steps Trainer::Impl::steps() {
  return {.copies = [this] { return copies(); },
          .leave =
              [this] {
                if (copies() == former_copies_) former_copies_.reset();
                end_session();
              },
          .enter =
              [this](const elastic::Brought& brought) {
                make_again(brought);
                return session_->learner->model().steps();
              }};
}

void Trainer::Impl::recover(const Error* why) {
  const observe::ActivityScope activity(observe::Activity::kRecovery);
  recovery_.recover(steps(), why);
  retired_copies_.reset();
}

void Trainer::Impl::resize(int ranks) {
  const observe::ActivityScope activity(observe::Activity::kRecovery);
  recovery_.resize(steps(), ranks, session_->loop.newcomers());
}

// The session's copies of the state stay until the process ends.
TrainResult Trainer::Impl::leave(int ranks) {
  recovery_.leave_job();
  TrainResult result;
  result.ranks = ranks;
  result.steps = session_->learner->model().steps();
  result.left = true;
  [[maybe_unused]] const Session* const kept = session_.release();
  return result;
}

std::string to_json(const TrainResult& result) {
  nlohmann::ordered_json json = {{"ranks", result.ranks}, {"epochs", result.epochs}};
  for (const auto& [name, value] : result.metrics) json[name] = value;
  json["loss"] = result.loss;
  json["samples_per_s"] = rounded(result.samples_per_s, 0);
  json["seconds"] = std::round(result.seconds * 100) / 100;
  return json_line(json);
}

Trainer::Trainer(Task task, const Options& options, Group world)
    : impl_(std::make_unique<Impl>(std::move(task), options, std::move(world))) {}
Trainer::Trainer(const Config& config, Group world, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(config, std::move(world), options)) {}
Trainer::~Trainer() = default;
TrainResult Trainer::run() { return impl_->run(); }
void Trainer::save(const std::string& folder) { impl_->save(folder); }
parallel::ParallelModel& Trainer::model() const { return impl_->model(); }
std::string Trainer::run_folder() const { return impl_->run_folder(); }
const Group& Trainer::world() const { return impl_->world(); }

}  // namespace weft::train
