// Defines the options of `weft train`, and those that it shares with other subcommands.
#include <chrono>
#include <cmath>

#include "weft/cli/internal/components.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

std::chrono::milliseconds seconds(double value) {
  return std::chrono::milliseconds(std::llround(value * 1e3));
}

void add_going(CLI::App& sub, launch::Going& going) {
  const CLI::Range positive(0.1, 7.0 * 86400);
  sub.add_option_function<double>(
         "--grace", [&going](double value) { going.grace = seconds(value); },
         "Seconds from a request to stop (SIGTERM, SIGUSR1, weft stop, a notice) until the ranks "
         "are killed. They save a checkpoint in it (default: 30)")
      ->type_name("SECONDS")
      ->check(positive);
  sub.add_flag("--requeue", going.requeue,
               "After a stop by SIGUSR1 or a notice, call scontrol requeue $SLURM_JOB_ID");
  auto* command =
      sub.add_option("--notice-command", going.notice_command,
                     "Shell command that runs every few seconds. Exit code 0: this machine will be "
                     "taken away, so save a checkpoint and stop")
          ->type_name("COMMAND");
  sub.add_option_function<double>(
         "--notice-interval", [&going](double value) { going.notice_interval = seconds(value); },
         "Seconds between two runs of --notice-command (default: 5)")
      ->type_name("SECONDS")
      ->check(positive)
      ->needs(command);
}

void add_scaling(CLI::App& sub, launch::Scaling& scaling) {
  auto* script =
      sub.add_option("--discovery-script", scaling.discovery_script,
                     "Shell command that prints host:slots lines every few seconds. The job has as "
                     "many ranks as this host has slots. Needs -n MIN:MAX")
          ->type_name("COMMAND");
  sub.add_option_function<double>(
         "--discovery-interval",
         [&scaling](double value) { scaling.discovery_interval = seconds(value); },
         "Seconds between two runs of --discovery-script (default: 5)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 86400.0))
      ->needs(script);
  sub.add_option("--scale-efficiency", scaling.efficiency,
                 "Use the most ranks whose throughput per rank is at least this fraction of the "
                 "best one. Needs -n MIN:MAX. 0: do not")
      ->type_name("FRACTION")
      ->check(CLI::Range(0.0, 0.999));
}

void add_on_hang(CLI::App& sub, std::string& policy) {
  sub.add_option("--on-hang", policy,
                 "What to do about a rank that hangs: warn, replace (kill it, so that it is lost), "
                 "or end (the job)")
      ->check(CLI::IsMember({"warn", "replace", "end"}));
}

void add_recovery(CLI::App& sub, launch::LaunchOptions& options) {
  sub.add_option("--min-ranks", options.min_ranks,
                 "Go on without lost ranks that are not replaced, with at least N ranks, and grow "
                 "again when they can be replaced. 0: never")
      ->type_name("N");
  sub.add_option("--max-replacements", options.max_replacements,
                 "Lost ranks to replace by new processes while the others go on (default: 0, or no "
                 "limit with -n MIN:MAX)")
      ->type_name("N");
  sub.add_option("--spares", options.spares,
                 "Warm spares: processes that have loaded everything, and take the place of a lost "
                 "rank at once. Needs --max-replacements or -n MIN:MAX")
      ->type_name("N");
}

void add_servers(CLI::App& sub, launch::ParameterServers& servers) {
  auto* count =
      sub.add_option("--servers", servers.count,
                     "Parameter servers of the job, in processes beside the ranks and spread over "
                     "the nodes. Clients in the ranks find them (docs/parameter-server.md)")
          ->type_name("N");
  sub.add_flag("--server-backup,!--no-server-backup", servers.backup,
               "Keep a copy of each server's values on the next server, with two or more servers, "
               "or do not (default: do)")
      ->needs(count);
  sub.add_option("--server-memory", servers.memory_mb,
                 "Most memory for the values of a server, and as much for its copy of another's")
      ->type_name("MB")
      ->needs(count);
}

void add_nodes(CLI::App& sub, launch::LaunchOptions& options) {
  sub.add_option("--nnodes", options.nnodes,
                 "Number of nodes of the job. MIN:MAX, with --rdzv-endpoint or --rendezvous: start "
                 "with MAX or fewer, go on with MIN, and grow when nodes come");
  sub.add_option("--rdzv-endpoint,--rdzv_endpoint", options.rdzv_endpoint,
                 "Address at which the nodes meet: the first node's (default port: 29400). Each "
                 "node may be lost then, also the first one")
      ->option_text("HOST[:PORT]");
  sub.add_option("--rendezvous", options.rendezvous,
                 "Meet in etcd servers instead: etcd://HOST:PORT,HOST:PORT[/PREFIX]")
      ->type_name("URL");
  sub.add_option("--rdzv-id,--rdzv_id", options.run_id, "Name of the job, the same on every node");
  sub.add_option("--rdzv-conf,--rdzv_conf", options.rdzv_conf,
                 "Seconds: join_timeout (600) until MIN nodes are there, last_call_timeout (30) to "
                 "wait for more, read_timeout (60) until a node that reaches no majority ends")
      ->type_name("KEY=S,...");
  sub.add_option("--secret-file,--secret_file", options.secret_file,
                 "File of at least 32 random bytes, the same on every node: ranks prove to each "
                 "other that they know it");
}

}  // namespace

CLI::Option* add_http(CLI::App& sub, std::string& address) {
  return sub.add_option("--http", address,
                        "Serve a live page and /metrics for Prometheus here: HOST:PORT, port 0 "
                        "takes a free one (default: none)");
}

void add_launching(CLI::App& sub, launch::LaunchOptions& options) {
  add_nodes(sub, options);
  add_recovery(sub, options);
  if constexpr (has(kParameterServer)) add_servers(sub, options.servers);
  add_on_hang(sub, options.on_hang);
  add_going(sub, options.going);
  add_scaling(sub, options.scaling);
}

void add_train_options(CLI::App& sub, TrainCommand& command) {
  sub.add_option("recipe", command.recipe,
                 "Folder with a recipe.toml, the file itself, or the name of a recipe")
      ->required();
  sub.add_option("-n,--ranks", command.ranks,
                 "Ranks (processes) to start on this machine, from 1 to 256. MIN:MAX: start MAX, "
                 "replace lost ranks, and go on with MIN. Under a launcher it must equal the "
                 "launcher's number");
  add_assignments(sub, command.assignments);
  sub.add_option("--name", command.name, "Name of the run folder (default: date and recipe)");
  sub.add_option("--trace", command.trace,
                 "Record a timeline of steps of all ranks, such as steps=10:15, for "
                 "chrome://tracing (trace.json in the run folder)");
  sub.add_flag("--resume{true}", command.resume,
               "Continue the run --name, or the newest run of the recipe, from its last "
               "checkpoint and with its configuration. "
               "--resume=auto: start a new run if there is none to continue")
      ->check(CLI::IsMember({"true", "auto"}))
      ->option_text("[=auto]");
  auto* dry = sub.add_flag("--dry-run", command.dry_run,
                           "Print every key with its value and origin, and stop");
  sub.add_flag("--json", command.json, "Print the result as one JSON object on stdout")
      ->excludes(dry);
  sub.add_flag("--check", command.check,
               "Compare the result with the recipe's expected.toml; exit with 1 if it is worse");
  sub.add_option("--progress", command.progress,
                 "How progress is shown: auto, bar, lines, json or none");
  add_launching(sub, command.launching);
  add_http(sub, command.launching.http);
}

}  // namespace weft::cli
