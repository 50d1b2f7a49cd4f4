#include "tests/chaos/chaos.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <utility>

#include "tests/chaos/internal/full_disk.h"
#include "tests/chaos/internal/hosts.h"
#include "tests/chaos/internal/run.h"
#include "tests/chaos/internal/train_command.h"
#include "tests/chaos/schedule.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/text/variables.h"

namespace weft::chaos {
namespace {

namespace fs = std::filesystem;
using internal::Hosts;
using internal::RunOptions;
using internal::TrainCommand;

// Limit of a job with faults: so many times the undisturbed one, and so much for each fault.
constexpr double kSlowdown = 10, kOfJob_s = 60, kOfFault_s = 30;
// Limit of an undisturbed job, if none is given.
constexpr double kUndisturbed_s = 3600;
// Time of an undisturbed job that shows only how long a step takes.
constexpr double kUndisturbedPart_s = 60;
// Free space of a small file system, beside what the undisturbed run needs.
constexpr std::uint64_t kSpare = std::uint64_t{16} << 20;

// Settings of a job that trains so many steps, whatever its recipe says; 0: until it is stopped.
std::vector<std::string> steps_alone(std::int64_t steps) {
  return {"train.max_steps=" + std::to_string(steps), "train.epochs=1000000000"};
}

bool has(const Options& options, FaultKind kind) {
  return std::find(options.faults.begin(), options.faults.end(), kind) != options.faults.end();
}

bool is_range(const Options& options) { return options.ranks.find(':') != std::string::npos; }

// The number of ranks at the start: 4 of "4" and of "2:4"; 0 if there is none.
int most_ranks(const Options& options) {
  return std::atoi(options.ranks.c_str() + options.ranks.find(':') + 1);
}

void check(const Options& options) {
  WEFT_REQUIRE(options.mean_s > 0 || options.count > 0 || !options.fail.empty(),
               "give a number of faults, or a mean time between them");
  WEFT_REQUIRE(options.mean_s <= 0 || options.plans.size() <= 1,
               "--mean is for one plan; give --kills for several");
  const int ranks = most_ranks(options);
  WEFT_REQUIRE(ranks >= 1, "-n " + options.ranks + ": expected N or MIN:MAX");
  WEFT_REQUIRE(options.hosts == 1 || (!is_range(options) && ranks % options.hosts == 0),
               "the number of ranks must be a multiple of --hosts");
  WEFT_REQUIRE(!has(options, FaultKind::kPartition) || options.hosts > 1,
               "a partition needs --hosts 2 or more");
}

std::uint64_t bytes_in(const std::string& folder) {
  std::uint64_t bytes = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator at(folder, gone), end; !gone && at != end;
       at.increment(gone)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) bytes += at->file_size(ignored);
  }
  return bytes;
}

// WEFT_FAIL of a job with faults: its failpoints, and what this process's environment says, by
// which a test of the test breaks recovery.
std::string fail_variable(const std::string& failpoints) {
  const std::string more = variable("WEFT_FAIL");
  return "WEFT_FAIL=" + more + (more.empty() || failpoints.empty() ? "" : ";") + failpoints;
}

class Chaos {
 public:
  explicit Chaos(const Options& options)
      : options_(options), own_mounts_(internal::private_mounts()) {
    check(options);
    if (has(options, FaultKind::kDiskFull) && !own_mounts_)
      throw Error(Errc::kUnavailable, "a full disk is a small file system: run as root");
    make_directories(options.folder);
    if (options.hosts > 1) hosts_ = std::make_unique<Hosts>(options.hosts);
    std::ofstream text(options.folder + "/text");
    for (int i = 0; i < 400; ++i) text << "The weft crosses the warp. ";
  }

  Outcome run() {
    Outcome outcome{options_.command, options_.seed, {}};
    std::vector<Plan> plans = options_.plans;
    const bool is_recipe = plans.empty();
    if (is_recipe) plans.push_back({.name = "recipe", .settings = {}});
    const auto counts = divide(options_.count, static_cast<int>(plans.size()));
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (options_.mean_s <= 0 && counts[i] == 0 && options_.fail.empty()) continue;
      outcome.plans.push_back(run_plan(plans[i], is_recipe, counts[i], i));
      const std::string text = to_json(outcome);
      write_file_atomic(options_.folder + "/report.json", text + "\n");
      write_file_atomic(options_.folder + "/report.html", to_html(text));
    }
    return outcome;
  }

 private:
  PlanOutcome run_plan(const Plan& plan, bool is_recipe, int count, std::size_t number) {
    PlanOutcome outcome;
    outcome.name = plan.name;
    if (!is_recipe) outcome.settings = workload_of(plan, options_.folder + "/text", count);
    // A full disk shows when a checkpoint is saved.
    if (has(options_, FaultKind::kDiskFull))
      outcome.settings.emplace_back("train.checkpoint_steps=10");
    for (const auto* more : {&plan.settings, &options_.settings})
      outcome.settings.insert(outcome.settings.end(), more->begin(), more->end());
    outcome.ranks = most_ranks(options_);
    const std::string folder = options_.folder + "/" + plan.name;
    fs::remove_all(folder);
    if (options_.mean_s > 0) {
      run_for_a_time(outcome, folder);
    } else {
      run_steps(outcome, folder, count, number);
    }
    return outcome;
  }

  // The undisturbed job first: it says how many steps there are, and how long they take.
  void run_steps(PlanOutcome& outcome, const std::string& folder, int count, std::size_t number) {
    run_undisturbed(outcome, folder + "/undisturbed", {}, 0);
    const auto steps = static_cast<std::int64_t>(finished_steps(outcome.undisturbed.steps).size());
    StepsOptions when{.count = count,
                      .first = std::max<std::int64_t>(1, steps / 20),
                      .last = steps - std::max<std::int64_t>(2, steps / 10),
                      .end = steps,
                      .step_s = outcome.undisturbed_step_s.back()};
    ScheduleOptions schedule = schedule_options();
    schedule.seed = options_.seed + number;
    auto faults = faults_at_steps(schedule, when);
    for (const Fault& fault : internal::failpoint_faults(options_.fail)) faults.push_back(fault);
    outcome.disturbed = run_disturbed(outcome, folder, faults, 0);
    outcome.verdict =
        judge(outcome.undisturbed, outcome.disturbed, {.same_weights = options_.same_weights});
  }

  // The job with faults first, where weights are compared: its last step is the undisturbed one's.
  // Else only the time of a step is of interest. It changes with what the machine does besides, so
  // it is measured before and after.
  void run_for_a_time(PlanOutcome& outcome, const std::string& folder) {
    const auto faults = faults_at_times(schedule_options(), options_.mean_s, options_.total_s);
    const double part_s = std::min(kUndisturbedPart_s, options_.total_s);
    if (!options_.same_weights)
      run_undisturbed(outcome, folder + "/undisturbed", steps_alone(0), part_s);
    outcome.disturbed = run_disturbed(outcome, folder, faults, options_.total_s);
    const auto finished = finished_steps(outcome.disturbed.steps);
    const std::int64_t last = finished.empty() ? 1 : finished.back().step;
    if (options_.same_weights) {
      run_undisturbed(outcome, folder + "/undisturbed", steps_alone(last), 0);
    } else {
      run_undisturbed(outcome, folder + "/undisturbed-after", steps_alone(0), part_s);
      std::erase_if(outcome.undisturbed.steps, [&](const auto& one) { return one.step > last; });
    }
    const auto& all = outcome.undisturbed_step_s;
    Expected expected{.same_weights = options_.same_weights};
    expected.step_s =
        std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
    outcome.verdict = judge(outcome.undisturbed, outcome.disturbed, expected);
  }

  void run_undisturbed(PlanOutcome& plan, const std::string& folder,
                       const std::vector<std::string>& more, double stop_after_s) {
    options_.tell(plan.name + ": undisturbed");
    TrainCommand train = command_of(plan, folder);
    train.settings.insert(train.settings.end(), more.begin(), more.end());
    RunOptions options;
    options.job = [train](bool, const std::string&) { return train.job({"WEFT_FAIL="}, false); };
    options.checkpoints = train.checkpoints();
    options.limit_s =
        options_.limit_s > 0 ? options_.limit_s : std::max(kUndisturbed_s, 3 * options_.total_s);
    options.own_dev_shm = own_mounts_;
    options.stop_after_s = stop_after_s;
    const JobRecord record = internal::run(options);
    if (record.exit_code == 0 && !record.digest.empty() && !finished_steps(record.steps).empty()) {
      plan.undisturbed = record;
      plan.undisturbed_step_s.push_back(seconds_per_step(record));
      return;
    }
    throw Error(Errc::kBadConfig,
                plan.name + ": the undisturbed job " +
                    (record.timed_out        ? "did not end in time"
                     : record.exit_code != 0 ? "failed"
                     : record.digest.empty() ? "saved no checkpoint: set train.checkpoint_every"
                                             : "finished no step") +
                    (record.lines.empty() ? "" : ": " + record.lines.back().text) + " (see " +
                    folder + "/output.log)");
  }

  JobRecord run_disturbed(const PlanOutcome& plan, const std::string& folder,
                          const std::vector<Fault>& faults, double stop_after_s) {
    options_.tell(plan.name + ": " + std::to_string(faults.size()) + " faults");
    TrainCommand train = command_of(plan, folder + "/disturbed");
    train.max_replacements = options_.max_replacements;
    if (!train.max_replacements && !is_range(options_))
      train.max_replacements = static_cast<int>(std::max<std::size_t>(faults.size(), 1));
    train.min_ranks = options_.min_ranks;
    train.spares = options_.spares;
    train.launching = options_.launching;
    if (stop_after_s > 0)
      for (const std::string& setting : steps_alone(0)) train.settings.push_back(setting);
    make_directories(train.runs());
    std::unique_ptr<internal::FullDisk> disk;
    if (has(options_, FaultKind::kDiskFull))
      disk = std::make_unique<internal::FullDisk>(
          train.runs(), kSpare + 2 * bytes_in(folder + "/undisturbed/runs"));
    RunOptions options;
    options.job = [train](bool resumed, const std::string& failpoints) {
      return train.job({fail_variable(failpoints)}, resumed);
    };
    options.checkpoints = train.checkpoints();
    options.faults = faults;
    options.overlap = options_.overlap;
    options.disk = disk.get();
    options.hosts = hosts_.get();
    options.stop_after_s = stop_after_s;
    options.own_dev_shm = own_mounts_;
    options.limit_s = options_.limit_s > 0
                          ? options_.limit_s
                          : kSlowdown * plan.undisturbed.ended_s + kOfJob_s +
                                kOfFault_s * static_cast<double>(faults.size()) + 2 * stop_after_s;
    return internal::run(options);
  }

  TrainCommand command_of(const PlanOutcome& plan, const std::string& folder) const {
    TrainCommand train;
    train.weft = options_.weft;
    train.recipe = options_.recipe;
    train.ranks = options_.ranks;
    train.settings = plan.settings;
    train.folder = folder;
    train.hosts = hosts_.get();
    return train;
  }

  ScheduleOptions schedule_options() const {
    return {.kinds = options_.faults,
            .seed = options_.seed,
            .ranks = most_ranks(options_),
            .hosts = options_.hosts,
            .overlap = options_.overlap};
  }

  const Options options_;
  const bool own_mounts_;
  std::unique_ptr<Hosts> hosts_;
};

}  // namespace

Outcome run(const Options& options) { return Chaos(options).run(); }

}  // namespace weft::chaos
