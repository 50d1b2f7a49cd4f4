// Defines the subcommands and options of `weft`.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "weft/base/error.h"
#include "weft/base/process/output.h"
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/command_line.h"
#include "weft/cli/internal/completion.h"
#include "weft/cli/internal/components.h"
#include "weft/cli/internal/descriptions.h"
#include "weft/cli/internal/help.h"
#include "weft/cli/internal/programs.h"
#include "weft/cli/internal/ranks.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

void add_train(CLI::App& app, TrainCommand& command, int& result) {
  auto* sub = add(app, kTrain);
  add_train_options(*sub, command);
  sub->callback([&] { result = train(command); });
}

// Uses torchrun's option names, each with hyphens and with underscores, and adds -n.
// `beyond`: the words from "--" on. The parser does not see them.
void add_run(CLI::App& app, launch::LaunchOptions& options, const std::vector<std::string>& beyond,
             int& result) {
  auto* sub = add(app, kRun);
  const auto text = [&](const char* names, std::string& value, const char* help) {
    sub->add_option(names, value, help);
  };
  text("-n,--nproc-per-node,--nproc_per_node", options.nproc_per_node,
       "Ranks on this node: a number, cpu, gpu or auto. MIN:MAX: start MAX, replace lost ranks, "
       "and go on with MIN");
  sub->add_option("--node-rank,--node_rank", options.node_rank, "Number of this node, from 0");
  text("--master-addr,--master_addr", options.master_addr, "Host name or address of node 0");
  sub->add_option("--master-port,--master_port", options.master_port,
                  "Port of the rendezvous store. 0: a free port on one node, 29500 on several");
  sub->add_flag("--standalone", options.standalone,
                "Run on one node, with a free port, whatever the other flags say");
  text("--role", options.role, "Role name passed to the ranks (ROLE_NAME)");
  add_launching(*sub, options);
  sub->add_option("--max-restarts,--max_restarts", options.max_restarts,
                  "Times that all ranks are restarted after a failure");
  text("--log-dir,--log_dir", options.log_dir, "Folder for files with the ranks' output");
  text("-r,--redirects", options.redirects,
       "Streams written to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, such "
       "as 0:1,1:3");
  text("-t,--tee", options.tee,
       "Streams written to files and shown here; values as for --redirects");
  text("--local-ranks-filter,--local_ranks_filter", options.local_ranks_filter,
       "Show the output of these local ranks only, such as 0,2");
  sub->add_flag("--prefix,!--no-prefix", options.prefix,
                "Print \"[rank N] \" before each line of a rank, or do not (default: do if there "
                "are several ranks)");
  text("--signals-to-handle,--signals_to_handle", options.signals_to_handle,
       "Signals that the launcher passes on to the ranks");
  add_http(*sub, options.http);
  sub->footer(std::string("The first word that is not a flag is the program; all words after it "
                          "are the program's arguments.\n\n") +
              kRun.examples);
  sub->formatter(std::make_shared<HelpFormatter>("PROGRAM [ARGUMENTS]..."));
  sub->prefix_command();  // words after the program's name belong to it
  sub->callback([&options, &beyond, &result, sub] {
    options.program = sub->remaining();
    if (!options.program.empty() && options.program[0].rfind('-', 0) == 0) {
      throw unknown(*sub, options.program[0]);
    }
    // A "--" before the program marks its start; a later "--" is an argument of the program.
    options.program.insert(options.program.end(),
                           beyond.begin() + (options.program.empty() && !beyond.empty() ? 1 : 0),
                           beyond.end());
    result = run(options);
  });
}

void add_runs(CLI::App& app, RunsCommand& command, int& result) {
  auto* sub = add(app, kRuns);
  sub->add_option("folder", command.folder, "Folder that contains the run folders");
  sub->add_flag("--json", command.json, "Print one JSON object for each run on stdout");
  sub->callback([&] { result = list_runs(command); });
}

void add_top(CLI::App& app, TopCommand& command, int& result) {
  auto* sub = add(app, kTop);
  sub->add_option("run", command.run, "Run folder, or name of a run in runs/")->required();
  sub->add_flag("--once", command.once, "Print the view once, and stop");
  add_http(*sub, command.http)->excludes("--once");
  sub->callback([&] { result = top(command); });
}

void add_scale(CLI::App& app, ScaleCommand& command, int& result) {
  auto* sub = add(app, kScale);
  sub->add_option("job", command.job,
                  "Run folder, name of a run in runs/, or process number of the launcher")
      ->required();
  sub->add_option("ranks", command.ranks, "Number of ranks that the job shall have")
      ->required()
      ->check(CLI::Range(1, 256));
  sub->add_option("--timeout", command.timeout_s, "Seconds to wait until the job has these ranks")
      ->check(CLI::Range(1, 86400));
  sub->callback([&] { result = scale(command); });
}

void add_stop(CLI::App& app, StopCommand& command, int& result) {
  auto* sub = add(app, kStop);
  sub->add_option("job", command.job,
                  "Run folder, name of a run in runs/, or process number of the launcher")
      ->required();
  sub->add_option("--grace", command.grace_s,
                  "Seconds until the ranks are killed (default: --grace of the job)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 7.0 * 86400));
  sub->callback([&] { result = stop(command); });
}

void add_status(CLI::App& app, StatusCommand& command, int& result) {
  auto* sub = add(app, kStatus);
  sub->add_option("run", command.run,
                  "Run folder, name of a run in runs/, or the process id of a launcher or a rank")
      ->required();
  sub->add_flag("--json", command.json, "Print one JSON object on stdout");
  sub->callback([&] { result = status(command); });
}

void add_report(CLI::App& app, ReportCommand& command, int& result) {
  auto* sub = add(app, kReport);
  sub->add_option("runs", command.runs, "Run folders, or names of runs in runs/")->required();
  sub->add_option("-o,--output", command.output,
                  "File to write (default: report.html, in the run folder if there is one run)");
  sub->callback([&] { result = report(command); });
}

void add_new(CLI::App& app, NewCommand& command, int& result) {
  auto* sub = add(app, kNew);
  sub->add_option("folder", command.folder, "Folder to create; its name becomes the program's name")
      ->required();
  sub->callback([&] { result = new_project(command); });
}

void add_generate(CLI::App& app, GenerateCommand& command, int& result) {
  auto* sub = add(app, kGenerate);
  sub->add_option("run", command.run,
                  "Run folder, name of a run in runs/, or a folder with config.json, "
                  "model.safetensors and tokenizer.json")
      ->required();
  sub->add_option("--prompt", command.prompt,
                  "Text to continue (default: the start of a document)");
  sub->add_option("--tokens", command.tokens, "Most tokens to generate")
      ->check(CLI::Range(0, 1'000'000));
  sub->add_option("--temperature", command.temperature,
                  "Sampling temperature. 0: always the most likely token")
      ->check(CLI::Range(0.0, 100.0));
  sub->add_option("--top-k", command.top_k,
                  "Sample from this many most likely tokens only. 0: from all")
      ->check(CLI::Range(0, 10'000'000));
  sub->add_option(
      "--top-p", command.top_p,
      "Sample from the most likely tokens that together have this probability. 1: from all");
  sub->add_option("--stop", command.stop, "Stop before this text. May be repeated")
      ->allow_extra_args(false);
  sub->add_option("--seed", command.seed, "Seed of the sampling");
  sub->callback([&] { result = generate(command); });
}

void add_export(CLI::App& app, ExportCommand& command, int& result) {
  auto* sub = add(app, kExport);
  sub->add_option("run", command.run, "Run folder, or name of a run in runs/")->required();
  sub->add_option("folder", command.output, "Folder to write")->required();
  sub->callback([&] { result = export_model(command); });
}

void add_checkpoint(CLI::App& app, CheckpointCommand& command, int& result) {
  auto* sub = add(app, kCheckpoint);
  sub->require_subcommand(1);
  const char* const newest =
      "Folder of a checkpoint, folder of a run, or name of a run in runs/; of a run, its newest "
      "complete checkpoint";
  const char* const all =
      "Folder of a checkpoint, folder of a run, or name of a run in runs/; of a run, all "
      "checkpoints";
  const auto verb = [&](const char* name, const char* help, const char* which,
                        int (*call)(const CheckpointCommand&)) {
    auto* one = sub->add_subcommand(name, help);
    one->add_option("checkpoint", command.checkpoint, which)->required();
    one->callback([&command, &result, call] { result = call(command); });
    return one;
  };
  auto* list = verb("ls", "List the checkpoints of a run; exit with 1 if one is damaged", all,
                    checkpoint_list);
  list->add_flag("--quick", command.quick, "Look at headers and sizes, and do not read every byte");
  auto* show = verb("show", "Print the training state and each tensor's type, shape and slices",
                    newest, checkpoint_show);
  show->add_option("--part", command.part, "Part to show: model or optimizer");
  show->add_flag("--json", command.json, "Print one JSON object for each tensor");
  verb("verify", "Read every byte and compare the checksums; exit with 65 if one is wrong", all,
       checkpoint_verify);
  auto* convert = verb(
      "convert", "Write whole tensors for other programs, or a checkpoint in the newest format",
      newest, checkpoint_convert);
  convert
      ->add_option("output", command.output,
                   "File NAME.safetensors, or a folder in the layout of Hugging Face's hub")
      ->required();
  auto* part = convert->add_option("--part", command.part,
                                   "Part to write: model or optimizer (default: model)");
  auto* size = convert
                   ->add_option("--max-shard-size", command.max_shard_bytes,
                                "Most bytes of a file in the folder, such as 2GB. 0: one file "
                                "(default: 5GB)")
                   ->transform(CLI::AsSizeValue(true));
  convert
      ->add_flag("--checkpoint", command.as_checkpoint,
                 "Copy the checkpoint into this folder of checkpoints, in the newest format")
      ->excludes(part)
      ->excludes(size);
}

void add_doctor(CLI::App& app, DoctorCommand& command, int& result) {
  auto* sub = add(app, kDoctor);
  auto* json = sub->add_flag("--json", command.json, "Print JSON lines on stdout");
  sub->add_flag("--topology", command.topology,
                "Print the hosts of this job's ranks and the measured links between them, as TOML")
      ->excludes(json);
  sub->callback([&] { result = doctor(command); });
}

// `weft completion` and `weft man`. Both are generated from the help of all subcommands.
void add_help(CLI::App& app, std::string& shell) {
  auto* completion = add(app, kCompletion);
  completion->add_option("shell", shell, "bash, zsh or fish")->required();
  completion->callback([&] { std::cout << completion_script(app, shell); });
  add(app, kMan)->callback([&] { std::cout << manual_page(app, WEFT_VERSION); });
}

// Replaces this process with another program of the same folder.
int run_program(std::string_view program, char** argv) {
  const std::string path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / std::string(program);
  ::execv(path.c_str(), arguments_for(program, argv));
  return fail(
      Error(Errc::kUnavailable, path + ": " + std::strerror(errno) + "; ./dev build makes it"));
}

}  // namespace

int weft_main(int argc, char** argv, const OwnFunctions& own) {
  open_standard_descriptors();
  ignore_file_size_signal();
  forget_unusable_threads();
  const std::string_view verb = argc > 1 ? argv[1] : "", word = argc > 2 ? argv[2] : "";
  for (const std::string& words : {std::string(verb), std::string(verb) + " " + std::string(word)})
    if (const auto error = absent(words)) return fail(*error);
  const std::string_view program = own_program(verb, word);
  if (!program.empty() && program != own.program) return run_program(program, argv);
  CLI::App app("Distributed deep learning for C++.", "weft");
  app.footer("Examples:\n  weft train recipes/fashion-mnist -n 2\n  weft COMMAND --help");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  int result = 0;
  TrainCommand training;
  launch::LaunchOptions launching;
  ChaosCommand wrecking;
  RunsCommand listing;
  TopCommand watching;
  ScaleCommand scaling;
  StopCommand stopping;
  StatusCommand asking;
  ReportCommand reporting;
  NewCommand creating;
  ScheduleCommand schedule;
  PlanCommands planning;
  GenerateCommand generating;
  ExportCommand exporting;
  TokenizerCommand tokenizing;
  [[maybe_unused]] LinearCommand linear;
  CheckpointCommand checkpointing;
  DoctorCommand doctoring;
  add_train(app, training, result);
  std::vector<std::string> beyond;
  if (verb == "run" || verb == "chaos") {
    const int seen = static_cast<int>(std::find(argv, argv + argc, std::string_view("--")) - argv);
    beyond.assign(argv + seen, argv + argc);
    argc = seen;
  }
  add_run(app, launching, beyond, result);
  add_chaos(app, wrecking, beyond, own.chaos, result);
  add_runs(app, listing, result);
  add_top(app, watching, result);
  add_scale(app, scaling, result);
  add_stop(app, stopping, result);
  add_status(app, asking, result);
  add_report(app, reporting, result);
  add_new(app, creating, result);
  add_schedule(app, schedule, result);
  add_plan(app, planning, own, result);
  add_generate(app, generating, result);
  add_export(app, exporting, result);
  add_tokenizer(app, tokenizing, result);
  if constexpr (has(kLinearModels)) add_linear(app, linear, own, result);
  add_checkpoint(app, checkpointing, result);
  add(app, kBench)->formatter(std::make_shared<HelpFormatter>("BENCH [OPTIONS]"));
  add_doctor(app, doctoring, result);
  std::string shell;
  add_help(app, shell);
  const int code = parse_and_run(app, argc, argv, result);
  const auto lost = lost_output();
  return lost && code == 0 ? fail(*lost) : code;
}

}  // namespace weft::cli
