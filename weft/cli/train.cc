#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "weft/base/json/error_file.h"
#include "weft/base/log.h"
#include "weft/base/process/output.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/ranks.h"
#include "weft/cli/internal/start_ranks.h"
#include "weft/comm/init.h"
#include "weft/components/components.h"
#include "weft/launch/limits.h"
#include "weft/launch/live_page.h"
#include "weft/observe/position/position.h"
#include "weft/observe/progress.h"
#include "weft/observe/run/run_folder.h"
#include "weft/plan/mesh/mesh.h"
#include "weft/rank_link/messages.h"
#include "weft/rank_link/spare.h"
#include "weft/strategy/strategy.h"
#include "weft/train/options.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::cli {
namespace {

constexpr std::chrono::milliseconds kGrace = std::chrono::seconds(30);

volatile std::sig_atomic_t stop_signal = 0, grace_s = 0;  // no grace_s under a launcher of weft
std::atomic<std::int64_t> stopped_ns = 0;                 // when stop_signal came

// Without a launcher of weft, which would do it.
void end_after_grace(int) {
  constexpr char kLine[] = "weft: no checkpoint fit into the grace period (--grace)\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  ::_exit(128 + SIGKILL);  // 128 + SIGTERM says that a checkpoint was saved
}

void request_stop(int number) {
  if (stop_signal == 0) {
    stopped_ns = observe::monotonic_ns();  // first: another signal may come in between
    stop_signal = number;
    if (grace_s > 0) ::alarm(static_cast<unsigned>(grace_s));
  } else if (grace_s > 0 && std::chrono::nanoseconds(observe::monotonic_ns() - stopped_ns) >=
                                launch::kOneRequest) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}

// For a signal that is ignored: only the launcher's counts.
void request_stop_of_launcher(int number, siginfo_t* info, void*) {
  if (info->si_code == SI_USER && info->si_pid == ::getppid()) request_stop(number);
}

// The first signal requests a checkpoint and a clean exit. A second request (launch::kOneRequest)
// ends the process at once. But a rank of weft's launcher is killed by the launcher alone, since a
// signal to all processes of a job reaches it twice. A signal that this process ignores, as after
// nohup, stays ignored. But the launcher asks its ranks to stop by SIGTERM.
void watch_signals(const launch::Going& going) {
  if (rank_link::launcher() == nullptr) {
    const double grace = std::chrono::duration<double>(going.grace.value_or(kGrace)).count();
    grace_s = std::max(1, static_cast<int>(0.9 * grace));
    ::signal(SIGALRM, end_after_grace);
  }
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    struct sigaction now {
    }, action{};
    ::sigaction(number, nullptr, &now);
    const bool is_ignored = now.sa_handler == SIG_IGN;
    if (is_ignored && (number != SIGTERM || rank_link::launcher() == nullptr)) continue;
    if (is_ignored) {
      action.sa_sigaction = request_stop_of_launcher;
      action.sa_flags = SA_SIGINFO | SA_RESTART;
    } else {
      action.sa_handler = request_stop;
      action.sa_flags = SA_RESTART;
    }
    ::sigaction(number, &action, nullptr);
  }
}

void print_configuration(const Config& config) {
  std::size_t width = 0;
  for (const auto& row : config.describe())
    width = std::max(width, row.key.size() + row.value.size());
  for (const auto& row : config.describe()) {
    std::cout << row.key << " = " << row.value
              << std::string(width - row.key.size() - row.value.size() + 2, ' ') << "# "
              << row.origin << '\n';
  }
}

// The lowest acceptable accuracy (accuracy minus tolerance) from the recipe's expected.toml. Throws
// Error(kBadConfig) if the file is missing or names no accuracy above 0.
double least_accuracy(const std::string& recipe_file) {
  const auto file = std::filesystem::path(recipe_file).parent_path() / "expected.toml";
  if (!std::filesystem::exists(file))
    throw Error(Errc::kBadConfig, "--check: there is no " + file.string());
  const Schema schema{{"accuracy", 0.0, "Accuracy on the held-out data.", {.min = 0, .max = 1}},
                      {"tolerance", 0.0, "Allowed shortfall of accuracy.", {.min = 0, .max = 1}},
                      {"minutes", 0.0, "Approximate training time on two cores.", {.min = 0}}};
  const auto expected = Config::load(file.string(), schema);
  if (expected.get_double("accuracy") <= 0)
    throw Error(Errc::kBadConfig, "--check: " + file.string() + " names no accuracy above 0");
  return expected.get_double("accuracy") - expected.get_double("tolerance");
}

bool as_expected(double least, const train::TrainResult& result) {
  const bool good = result.accuracy >= least;
  log(good ? LogLevel::kInfo : LogLevel::kError, good ? "as expected" : "not as expected",
      {{"accuracy", result.accuracy}, {"at_least", least}});
  return good;
}

comm::InitOptions joining_of(const Config& config) {
  comm::InitOptions joining;
  joining.transport = comm::parse_transport(config.get_string("comm.transport"));
  joining.ordered_sums = config.get_bool("train.reproducible");
  joining.interface = config.get_string("comm.interface");
  joining.timeout =
      std::chrono::milliseconds(std::llround(config.get_double("comm.timeout_s") * 1e3));
  joining.alike = {{"recipe", train::outline_of(config)}};
  return joining;
}

// `dir`: the folder of the run folders.
std::string how_to_go_on(const std::string& run, const std::string& dir) {
  if (checkpoint::newest_step(run + "/ckpt") < 0)
    return "no checkpoint is saved, since the loss or a gradient is NaN or infinite";
  const bool is_usual = dir == Config(train::recipe_schema()).get_string("run.dir");
  return "go on with --resume --name " + std::filesystem::path(run).filename().string() +
         (is_usual ? "" : " --set run.dir=" + dir);
}

// Runs one rank, from the rendezvous to its exit code. `least`: the accuracy that --check requires.
int train_rank(const TrainCommand& command, const Config& config, const std::string& file,
               bool resume, double least) {
  use_threads();
  outlive_readers();
  train::TrainerOptions options;
  options.recipe = train::recipe_name(file);
  options.resume = resume;
  options.trace = command.trace;
  options.progress = observe::parse_progress_mode(command.progress);
  options.components = components::built();
  options.should_stop = [] {
    if (stop_signal != 0) rank_link::tell_launcher(rank_link::Stopping{.by_signal = true});
    return stop_signal != 0;
  };
  train::Trainer::prepare(config, options);
  auto world = comm::init(joining_of(config));
  watch_signals(command.launching.going);  // until here, a signal ends the process as usual
  // Not kept here: the sockets of the first group would stay open after a recovery.
  train::Trainer trainer(config, std::move(world), options);
  const auto result = trainer.run();
  ::alarm(0);
  if (result.left) return 0;
  if (result.stopped) {
    if (trainer.world().rank() == 0)
      log_warn("stopped by a signal; " +
                   how_to_go_on(trainer.run_folder(), config.get_string("run.dir")),
               {{"step", result.steps}});
    return 128 + (stop_signal == SIGINT ? SIGINT : SIGTERM);
  }
  if (trainer.world().rank() != 0) return 0;
  log_info("done", {{"accuracy", result.accuracy},
                    {"loss", rounded(result.loss, 4)},
                    {"epochs", result.epochs},
                    {"samples_per_s", rounded(result.samples_per_s, 0)},
                    {"seconds", std::round(result.seconds * 10) / 10},
                    {"run", trainer.run_folder()}});
  if (command.json) std::cout << to_json(result) << std::endl;
  return command.check && !as_expected(least, result) ? 1 : 0;
}

// The live page of a run whose rank 0 is this process.
std::optional<launch::LivePage> live_page(const std::string& address) {
  if (address.empty()) return std::nullopt;
  std::optional<launch::LivePage> page(std::in_place, address);
  page->use_here();
  return page;
}

// The largest number of ranks that -n gives: 4 of "4" and of "2:4". The launcher checks the rest.
int most_ranks(const TrainCommand& command) {
  if (command.ranks.empty()) return 1;
  const std::string text = command.ranks.substr(command.ranks.find(':') + 1);
  const int ranks = parse_number<int>(text).value_or(0);
  if (ranks < 1 || ranks > 256) {
    throw Error(Errc::kInvalidArgument, "--ranks " + command.ranks +
                                            ": expected a number from 1 to 256, or MIN:MAX, such "
                                            "as 2:4");
  }
  return ranks;
}

bool is_range(const TrainCommand& command) { return command.ranks.find(':') != std::string::npos; }

// Other strategies have nothing on servers.
void warn_of_idle_servers(const TrainCommand& command, const Config& config) {
  const std::string& strategy = config.get_string("strategy.name");
  if (command.launching.servers.count > 0 && strategy != "downpour" && strategy != "easgd_async")
    log_warn("--servers: the strategy \"" + strategy +
             "\" uses no parameter servers; downpour and easgd_async do");
}

void warn_of_idle_keys(const Config& config) {
  for (const std::string& line : train::idle_keys(config)) log_warn(line);
}

struct LauncherFlag {
  const char* name;
  bool is_set;
  bool needs_ranks;  // at least two
};

// The flags that weft's launcher serves. It checks their values.
std::vector<LauncherFlag> launcher_flags(const TrainCommand& command) {
  const launch::LaunchOptions& given = command.launching;
  std::vector<LauncherFlag> flags = {
      {"--nnodes", given.nnodes != "1", false},
      {"-n MIN:MAX", is_range(command), false},
      {"--max-replacements", given.max_replacements.value_or(0) != 0, true},
      {"--min-ranks", given.min_ranks != 0, true},
      {"--spares", given.spares != 0, true},
      {"--on-hang", given.on_hang != "warn", true},
      {"--discovery-script", !given.scaling.discovery_script.empty(), false},
      {"--scale-efficiency", given.scaling.efficiency != 0, false},
      {"--servers", given.servers.count != 0, false},
      {"--requeue", given.going.requeue, false},
      {"--notice-command", !given.going.notice_command.empty(), false}};
  std::erase_if(flags, [](const LauncherFlag& flag) { return !flag.is_set; });
  return flags;
}

// Flags that a launcher alone uses, and that a job of one node may have in vain.
void refuse_flags_of_launcher(const TrainCommand& command, const std::string& launcher) {
  const launch::LaunchOptions& given = command.launching;
  const std::pair<const char*, bool> flags[] = {
      {"--rdzv-endpoint", !given.rdzv_endpoint.empty()},
      {"--rendezvous", !given.rendezvous.empty()},
      {"--rdzv-id", !given.run_id.empty()},
      {"--rdzv-conf", !given.rdzv_conf.empty()},
      {"--secret-file", !given.secret_file.empty()},
      {"--grace", given.going.grace && rank_link::launcher() != nullptr}};
  for (const auto& [name, is_set] : flags) {
    if (is_set)
      throw Error(Errc::kBadConfig, std::string(name) + ": the ranks were started by " + launcher +
                                        "; give the flag to the launcher");
  }
}

// `launcher`: what started this process; "alone" if nothing did.
void check_launcher_flags(const TrainCommand& command, const std::vector<LauncherFlag>& flags,
                          const std::string& launcher) {
  if (launcher != "alone") refuse_flags_of_launcher(command, launcher);
  const bool one_rank =
      most_ranks(command) < 2 && !is_range(command) && command.launching.nnodes == "1";
  for (const LauncherFlag& flag : flags) {
    const std::string name = flag.name;
    if (launcher != "alone")
      throw Error(Errc::kBadConfig,
                  name + ": the ranks were started by " + launcher + "; weft run takes this flag");
    if (flag.needs_ranks && one_rank)
      throw Error(Errc::kBadConfig, name + " needs at least two ranks; set -n");
  }
}

// For ranks that weft's launcher is to start.
void check_transport(const Config& config) {
  if (config.get_string("comm.transport") != "mpi") return;
  throw Error(Errc::kBadConfig, "comm.transport (" + config.origin("comm.transport") +
                                    ") = \"mpi\" needs ranks that an MPI starts, such as mpirun -n "
                                    "2 weft train RECIPE; or use auto");
}

Config configuration_of_new_run(const TrainCommand& command, const std::string& file) {
  Config config = train::load_recipe(file, command.assignments);
  if (!command.name.empty()) config.set("run.name=" + command.name, "--name");
  if (command.resume == "true") {
    const std::string& name = config.get_string("run.name");
    const std::string& dir = config.get_string("run.dir");
    throw Error(Errc::kInvalidArgument,
                name.empty()
                    ? "there is no run of " + train::recipe_name(file) + " to resume in " + dir +
                          "; give its name with --name, or start one without --resume"
                    : "there is no run to resume in " + dir + "/" + name);
  }
  config.set("run.recipe=" + train::recipe_name(file), "weft train");
  return config;
}

launch::LaunchOptions launch_options(const TrainCommand& command) {
  launch::LaunchOptions launching = command.launching;
  if (!command.ranks.empty()) launching.nproc_per_node = command.ranks;
  launching.rank0_keeps_terminal = true;
  return launching;
}

// Says what each rank sends. Says nothing for the strategy "sync".
void print_strategy(const Config& config, int ranks) {
  const train::Options options = train::options_of(config);
  if (!strategy::exchanges_weights(options.strategy)) return;
  const plan::MeshLayout mesh(ranks, options.mesh.axes());
  const int workers = mesh.size("dp");
  strategy::check(options.strategy, workers);
  const auto parameters = train::parameters_of(config, components::built());
  if (!parameters) {
    std::cout << "# strategy: training says at its start what a rank of this model sends\n";
    return;
  }
  std::cout << "# strategy: "
            << strategy::describe(options.strategy, workers, *parameters * workers / ranks) << '\n';
}

}  // namespace

int train(const TrainCommand& command) {
  const auto file = train::find_recipe(command.recipe);
  const auto resumed = command.resume.empty()
                           ? std::nullopt
                           : train::load_recipe_of_run(file, command.assignments, command.name);
  const auto config = resumed ? *resumed : configuration_of_new_run(command, file);
  observe::check_run_name(config.get_string("run.name"));
  observe::parse_progress_mode(command.progress);
  if (!command.trace.empty()) train::check_trace(command.trace);
  const double least =
      command.check ? least_accuracy(file) : 0;  // checked before the training starts
  if (command.dry_run) {
    warn_of_idle_keys(config);
    print_configuration(config);
    print_strategy(config, std::max(1, most_ranks(command)));
    return 0;
  }
  if (rank_link::is_spare()) return train_rank(command, config, file, resumed.has_value(), least);
  const auto identity = comm::discover(comm::Environment::process());
  if (identity.rank == 0) warn_of_idle_keys(config);
  const auto flags = launcher_flags(command);
  check_launcher_flags(command, flags, identity.source);
  const int ranks = most_ranks(command);
  if (identity.source != "alone") {
    if (!command.ranks.empty() && ranks != identity.world) {
      throw Error(Errc::kBadConfig, "-n " + command.ranks + " disagrees with " + identity.source +
                                        ", which started " + counted(identity.world, "rank") +
                                        "; leave out -n");
    }
    const auto page = identity.rank == 0 ? live_page(command.launching.http) : std::nullopt;
    return train_rank(command, config, file, resumed.has_value(), least);
  }
  if (command.launching.nnodes == "1") train::check_files(config);
  if (ranks == 1 && flags.empty()) {
    const auto page = live_page(command.launching.http);
    return train_rank(command, config, file, resumed.has_value(), least);
  }
  check_transport(config);
  warn_of_idle_servers(command, config);
  share_cores(ranks);
  return launch::launch_forked(launch_options(command), [&](int) {
    return train_rank(command, config, file, resumed.has_value(), least);
  });
}

}  // namespace weft::cli
