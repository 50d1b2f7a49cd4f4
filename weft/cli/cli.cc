// The command line's words.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "weft/base/error.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/command_line.h"

namespace weft::cli {
namespace {

// A subcommand's line in the list of all, and the examples below its own help.
struct About {
  const char* name;
  const char* line;
  const char* examples;
};

constexpr About kTrain{"train", "Train a recipe: a folder with recipe.toml, or the name of one in recipes/.", R"(Examples:
  weft train recipes/fashion-mnist -n 2
  weft train fashion-mnist --set train.epochs=1 --set optimizer.lr=0.05
  weft train shapes --dry-run                every key, its value and where it comes from
  weft train fashion-mnist --resume          go on with the newest run from its last checkpoint
  mpirun -np 2 weft train fashion-mnist      a rank of somebody else's launcher)"};

constexpr About kRun{"run", "Start the ranks of a program on this node, watch them, name the first that fails; flags are torchrun's.",
                     R"(Examples:
  weft run -n 2 ./program --its-flags
  weft run -n 2 --log-dir logs --tee 3 ./program
  weft run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 -n 8 --secret-file job.secret ./program)"};

constexpr About kNew{"new", "Make a project that trains a model of its own: CMakeLists.txt, main.cc, train.toml, a test.", R"(Examples:
  weft new rings && cd rings && cmake -B build && cmake --build build && ./build/rings train.toml)"};

constexpr About kSchedule{"schedule", "Show collective algorithms and pipeline schedules as data.", R"(Examples:
  weft schedule list
  weft schedule show ring --ranks 8
  weft schedule show halving_doubling --ranks 8 --svg rabenseifner.svg
  weft schedule show hierarchical --hosts 2x4,3 --svg hosts.svg
  weft schedule show gossip --graph exponential --ranks 16
  weft schedule show 1f1b --stages 4 --micro-batches 8
  weft schedule show interleaved --stages 4 --virtual 2 --svg interleaved.svg
  weft schedule show automatic --costs 1,1.4,0.6,0.1 --memory 6)"};

constexpr About kPlan{"plan", "Say what collectives would take, by a model of the links, and who is where on a mesh.", R"(Examples:
  weft plan simulate ring,double_binary_tree,hierarchical --hosts 1250x8
  weft plan simulate ring,torus --grid 32x32 --size 1MiB,1GiB
  weft plan simulate hierarchical --topology cluster.toml --across recursive_doubling --json
  weft plan show pp=2,dp=2,tp=2 --hosts 2x4)"};

// Its options and help are those of the program weft-bench (bench/bench_main.cc).
constexpr About kBench{"bench", "Measure weft beside its peers, in one run; see weft bench --help.", ""};

constexpr About kDoctor{"doctor", "Look for what training will meet on this machine: OK, WARN or FAIL, with a fix; exit code 1 on FAIL.",
                        R"(Examples:
  weft doctor
  weft doctor --json
  weft run -n 4 --no-prefix weft doctor --topology > cluster.toml)"};

constexpr About kGenerate{"generate", "Write text by a model that a text recipe has trained, or a GPT-2 or Llama of Hugging Face's.",
                          R"(Examples:
  weft generate runs/2026-01-31-120000-licenses --prompt "This program is"
  weft generate licenses-1 --tokens 100 --temperature 0
  weft generate folder/with/config.json --prompt "Once upon a time" --top-p 0.9 --stop "The end"
  weft run -n 2 --no-prefix weft generate licenses-1     the layers split over two ranks)"};

constexpr About kExport{"export", "Write the model of a text recipe's run as a folder that Hugging Face's transformers loads.", R"(Examples:
  weft export runs/2026-01-31-120000-licenses models/licenses
  weft export licenses-1 models/licenses && weft generate models/licenses)"};

constexpr About kTokenizer{"tokenizer", "Learn a vocabulary of byte pairs; turn text into tokens and back.", R"(Examples:
  weft tokenizer train /usr/share/common-licenses/* --vocab 1024 -o tokenizer.json
  weft tokenizer encode tokenizer.json "This program is free"
  weft tokenizer encode tokenizer.json --file book.txt --json
  weft tokenizer decode tokenizer.json 1130 318 285)"};

constexpr About kCheckpoint{"checkpoint", "List, show, verify and convert the checkpoints of runs.", R"(Examples:
  weft checkpoint ls licenses-1
  weft checkpoint show runs/licenses-1/ckpt/step-00000938 --part model
  weft checkpoint verify licenses-1
  weft checkpoint convert licenses-1 model.safetensors
  weft checkpoint convert licenses-1 for-the-hub --max-shard-size 2GB
  weft checkpoint convert old/ckpt/step-00000100 new/ckpt --checkpoint)"};

CLI::App* add(CLI::App& app, const About& about) {
  auto* sub = app.add_subcommand(about.name, about.line);
  sub->footer(about.examples);
  return sub;
}

void add_train(CLI::App& app, TrainCommand& command, int& result) {
  auto* sub = add(app, kTrain);
  sub->add_option("recipe", command.recipe, "folder, recipe.toml or name")->required();
  sub->add_option("-n,--ranks", command.ranks, "processes on this machine; under a launcher, its number")->check(CLI::Range(1, 4096));
  sub->add_option("--set", command.assignments, "key=value over the recipe; may be repeated")->allow_extra_args(false);
  sub->add_option("--name", command.name, "of the run folder; default: date and recipe");
  sub->add_option("--trace", command.trace, "time line of some steps of all ranks, for chrome://tracing, in the run folder: steps=10:15");
  sub->add_flag("--resume", command.resume, "go on from the last checkpoint of --name, or of the newest run of this recipe");
  sub->add_flag("--dry-run", command.dry_run, "print the configuration with each value's origin, and stop");
  sub->add_flag("--json", command.json, "the result as one JSON object on stdout");
  sub->add_flag("--check", command.check, "exit with 1 where the result is not what the recipe's expected.toml says");
  sub->add_option("--progress", command.progress, "auto, bar, lines, json or none");
  sub->callback([&] { result = train(command); });
}

// torchrun's names: -n, and both spellings of each.
// `beyond`: the words from "--" on, which the parser does not see.
void add_run(CLI::App& app, launch::LaunchOptions& options, const std::vector<std::string>& beyond, int& result) {
  auto* sub = add(app, kRun);
  const auto text = [&](const char* names, std::string& value, const char* help) { sub->add_option(names, value, help); };
  text("-n,--nproc-per-node,--nproc_per_node", options.nproc_per_node, "ranks on this node: a number, cpu, gpu or auto");
  text("--nnodes", options.nnodes, "nodes of the job");
  sub->add_option("--node-rank,--node_rank", options.node_rank, "which of the nodes this is");
  text("--master-addr,--master_addr", options.master_addr, "host of rank 0");
  sub->add_option("--master-port,--master_port", options.master_port, "port of the store; 0: a free one on one node, 29500 on several");
  sub->add_flag("--standalone", options.standalone, "one node and a port of its own");
  text("--rdzv-id,--rdzv_id", options.run_id, "name of the job");
  text("--role", options.role, "told to the ranks");
  text("--secret-file,--secret_file", options.secret_file, "at least 32 random bytes, the same on every node");
  sub->add_option("--max-restarts,--max_restarts", options.max_restarts, "of all ranks after a failure");
  text("--log-dir,--log_dir", options.log_dir, "folder for the ranks' output");
  text("-r,--redirects", options.redirects, "to files: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3 by local rank");
  text("-t,--tee", options.tee, "to files and here, likewise");
  text("--local-ranks-filter,--local_ranks_filter", options.local_ranks_filter, "show only these, such as 0,2");
  sub->add_flag("--prefix,!--no-prefix", options.prefix, "\"[rank 1] \" before each line; default: with several ranks");
  text("--signals-to-handle,--signals_to_handle", options.signals_to_handle, "passed on to the ranks");
  sub->footer(std::string("The first word that is no flag is PROGRAM, the rest its own arguments.\n\n") + kRun.examples);
  sub->prefix_command();  // what follows the first word that is no flag is the program's
  sub->callback([&options, &beyond, &result, sub] {
    options.program = sub->remaining();
    // A "--" before the program only says where it begins; a later one is the program's own.
    options.program.insert(options.program.end(), beyond.begin() + (options.program.empty() && !beyond.empty() ? 1 : 0), beyond.end());
    result = run(options);
  });
}

void add_new(CLI::App& app, NewCommand& command, int& result) {
  auto* sub = add(app, kNew);
  sub->add_option("folder", command.folder, "to make; its name becomes the program's")->required();
  sub->callback([&] { result = new_project(command); });
}

void add_choice(CLI::App& sub, ScheduleChoice& choice) {
  sub.add_option("--collective", choice.collective, "all_reduce, broadcast, …");
  sub.add_option("--ranks", choice.ranks, "world size; default: the topology's, else 8")->check(CLI::Range(1, 1 << 18));
  sub.add_option("--hosts", choice.hosts, "ranks of each: 2x4,3 is two hosts of four and one of three");
  sub.add_option("--grid", choice.grid, "rows x columns of a torus, such as 4x8");
  sub.add_option("--topology", choice.topology, "a TOML file that says which ranks are near each other, and the links");
  sub.add_option("--across", choice.across, "hierarchical: the algorithm between the outermost groups");
  sub.add_option("--chunk", choice.chunk_bytes, "bytes of a pipeline's block of f32, such as 64KiB; 0: the algorithm's own")
      ->transform(CLI::AsSizeValue(false));
  sub.add_option("--radix", choice.radix, "knomial: children of a node, plus one; default 4")->check(CLI::Range(2, 1 << 18));
  sub.add_option("--root", choice.root, "of broadcast, reduce, gather and scatter");
}

void add_pipeline(CLI::App& sub, PipelineChoice& choice) {
  sub.add_option("--stages", choice.stages, "pipelines: ranks in a row; default 4");
  sub.add_option("--micro-batches", choice.micro_batches, "pipelines: default 8");
  sub.add_option("--virtual", choice.virtual_stages, "pipelines: stages of each rank; default: as few as the schedule can do");
  sub.add_option("--costs", choice.costs, "pipelines: time of a forward, of a backward of the input, of the weights, of a message: 1,1,1,0")
      ->delimiter(',');
  sub.add_option("--memory", choice.memory, "pipelines: micro-batches that a rank of the automatic schedule may hold");
}

void add_schedule(CLI::App& app, ScheduleCommand& command, int& result) {
  auto* sub = add(app, kSchedule);
  sub->require_subcommand(1);
  auto* list = sub->add_subcommand("list", "the algorithms, and what each can do");
  list->add_flag("--json", command.json, "JSON lines on stdout");
  list->callback([&] { result = schedule_list(command.json); });
  auto* show = sub->add_subcommand("show", "one algorithm, round by round; one pipeline schedule, rank by rank");
  show->add_option("algorithm", command.algorithm, "see weft schedule list")->required();
  add_choice(*show, command.choice);
  add_pipeline(*show, command.pipeline);
  show->add_option("--count", command.count, "elements; 0: a length that shows the algorithm well")->check(CLI::NonNegativeNumber);
  show->add_option("--graph", command.graph, "gossip: ring, grid, exponential, one_peer_exponential or random_matching");
  show->add_option("--seed", command.seed, "gossip: of random_matching");
  show->add_option("--svg", command.svg, "write the picture to this file");
  show->add_flag("--json", command.json, "every step or action as a JSON line on stdout");
  show->callback([&] { result = schedule_show(command); });
}

void add_generate(CLI::App& app, GenerateCommand& command, int& result) {
  auto* sub = add(app, kGenerate);
  sub->add_option("run", command.run, "a run's folder, its name in runs/, or a folder with config.json, model.safetensors, tokenizer.json")
      ->required();
  sub->add_option("--prompt", command.prompt, "what to go on from; default: as at the start of a document");
  sub->add_option("--tokens", command.tokens, "how many at most")->check(CLI::Range(0, 1'000'000));
  sub->add_option("--temperature", command.temperature, "0: always the likeliest token")->check(CLI::Range(0.0, 100.0));
  sub->add_option("--top-k", command.top_k, "draw from the so many likeliest tokens; 0: from all")->check(CLI::Range(0, 10'000'000));
  sub->add_option("--top-p", command.top_p, "draw from the likeliest tokens that together have this probability; 1: from all");
  sub->add_option("--stop", command.stop, "end before this text; may be repeated")->allow_extra_args(false);
  sub->add_option("--seed", command.seed, "of the draws");
  sub->callback([&] { result = generate(command); });
}

void add_export(CLI::App& app, ExportCommand& command, int& result) {
  auto* sub = add(app, kExport);
  sub->add_option("run", command.run, "its folder, or its name in runs/")->required();
  sub->add_option("folder", command.output, "to write")->required();
  sub->callback([&] { result = export_model(command); });
}

void add_tokenizer(CLI::App& app, TokenizerCommand& command, int& result) {
  auto* sub = add(app, kTokenizer);
  sub->require_subcommand(1);
  auto* train = sub->add_subcommand("train", "learn byte pairs from text files, as GPT-2's tokenizer has them");
  train->add_option("files", command.files, "of text")->required();
  train->add_option("--vocab", command.vocabulary, "tokens: special ones, 256 bytes, and pairs")->check(CLI::Range(257, 1 << 21));
  train->add_option("--min-count", command.min_count, "of a pair that becomes a token")->check(CLI::Range(1, 1 << 30));
  train->add_option("--special", command.specials, "a token that no text makes; may be repeated; default: <|endoftext|>")
      ->allow_extra_args(false);
  train->add_option("-o,--output", command.output, "tokenizer.json, in Hugging Face's format");
  train->callback([&] { result = tokenizer_train(command); });
  const char* which = "bytes, a tokenizer.json, or the folder of one";
  auto* encode = sub->add_subcommand("encode", "print the tokens of a text: their numbers, or with --json each with its text");
  encode->add_option("tokenizer", command.tokenizer, which)->required();
  encode->add_option("text", command.text, "default: --file, else stdin");
  encode->add_option("--file", command.files, "text to encode")->expected(1);
  encode->add_flag("--specials", command.recognise, "special tokens in the text are tokens, not text");
  encode->add_flag("--json", command.json, "one JSON object a token");
  encode->callback([&] { result = tokenizer_encode(command); });
  auto* decode = sub->add_subcommand("decode", "print the text of tokens");
  decode->add_option("tokenizer", command.tokenizer, which)->required();
  decode->add_option("ids", command.ids, "their numbers; default: from stdin");
  decode->callback([&] { result = tokenizer_decode(command); });
}

void add_checkpoint(CLI::App& app, CheckpointCommand& command, int& result) {
  auto* sub = add(app, kCheckpoint);
  sub->require_subcommand(1);
  const auto verb = [&](const char* name, const char* help, int (*call)(const CheckpointCommand&)) {
    auto* one = sub->add_subcommand(name, help);
    const char* which = "a checkpoint's folder, a run's folder, or the name of a run in runs/; of a run the newest complete checkpoint";
    one->add_option("checkpoint", command.checkpoint, which)->required();
    one->callback([&command, &result, call] { result = call(command); });
    return one;
  };
  verb("ls", "list the checkpoints of a run; exit with 1 where one is damaged", checkpoint_list);
  auto* show = verb("show", "print the state, and each tensor's type, shape and slices", checkpoint_show);
  show->add_option("--part", command.part, "only this part: model, optimizer");
  show->add_flag("--json", command.json, "one JSON object a tensor");
  verb("verify", "read every byte and compare its checksum", checkpoint_verify);
  auto* convert = verb("convert", "write whole tensors for other programs, or the newest form of a checkpoint", checkpoint_convert);
  convert->add_option("output", command.output, "a file NAME.safetensors, or a folder as Hugging Face's hub has it")->required();
  convert->add_option("--part", command.part, "model or optimizer; default: model");
  convert->add_option("--max-shard-size", command.max_shard_bytes, "most bytes of a file in the folder, such as 2GB; 0: one file")
      ->transform(CLI::AsSizeValue(true));
  convert->add_flag("--checkpoint", command.as_checkpoint, "copy the checkpoint into this folder of checkpoints, in the newest form");
}

void add_mesh(CLI::App& plan, MeshCommand& command, int& result) {
  auto* show = plan.add_subcommand("show", "a mesh of ranks: who is where, and which axes leave a host");
  show->add_option("axes", command.axes, "dp, fsdp, tp, cp, ep and pp with their sizes, neighbours last; 0: what is left")->required();
  show->add_option("-n,--ranks", command.ranks, "how many there are; default: those of the hosts, else as the sizes make");
  show->add_option("--hosts", command.hosts, "ranks of each: 2x4,3 is two hosts of four and one of three");
  show->add_option("--svg", command.svg, "draw it into a file");
  show->add_flag("--json", command.json, "JSON lines on stdout, one a rank");
  show->callback([&] { result = plan_show(command); });
}

void add_plan(CLI::App& app, SimulateCommand& command, MeshCommand& mesh, int& result) {
  auto* sub = add(app, kPlan);
  sub->require_subcommand(1);
  auto* simulate = sub->add_subcommand("simulate", "play algorithms step by step over the links of a topology: time, bytes, critical path");
  simulate->add_option("algorithms", command.algorithms, "see weft schedule list; several with commas")->required()->delimiter(',');
  add_choice(*simulate, command.choice);
  simulate->add_option("--size", command.sizes, "bytes of the longer of input and output, f32; 64KiB and 25MB will do")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  simulate->add_flag("--json", command.json, "JSON lines on stdout");
  simulate->callback([&] { result = plan_simulate(command); });
  add_mesh(*sub, mesh, result);
}

void add_doctor(CLI::App& app, DoctorCommand& command, int& result) {
  auto* sub = add(app, kDoctor);
  sub->add_flag("--json", command.json, "JSON lines on stdout");
  sub->add_flag("--topology", command.topology, "where the ranks of this job are and what their links do, as TOML");
  sub->callback([&] { result = doctor(command); });
}

// Becomes the program weft-bench, which lies beside this one. It is a program of its own since few who train also measure.
int run_bench(char** arguments) {
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft-bench";
  ::execv(path.c_str(), arguments);
  return fail(Error(Errc::kUnavailable, "weft bench: " + path + ": " + std::strerror(errno) + "; ./dev build makes it"));
}

}  // namespace

int weft_main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "bench") return run_bench(argv + 1);
  CLI::App app("Distributed deep learning for C++.", "weft");
  app.footer("Examples:\n  weft train recipes/fashion-mnist -n 2\n  weft COMMAND --help");
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  int result = 0;
  TrainCommand training;
  launch::LaunchOptions launching;
  NewCommand creating;
  ScheduleCommand schedule;
  SimulateCommand simulating;
  MeshCommand mesh;
  GenerateCommand generating;
  ExportCommand exporting;
  TokenizerCommand tokenizing;
  CheckpointCommand checkpointing;
  DoctorCommand doctoring;
  add_train(app, training, result);
  std::vector<std::string> beyond;
  if (argc > 1 && std::string_view(argv[1]) == "run") {
    const int seen = static_cast<int>(std::find(argv, argv + argc, std::string_view("--")) - argv);
    beyond.assign(argv + seen, argv + argc);
    argc = seen;
  }
  add_run(app, launching, beyond, result);
  add_new(app, creating, result);
  add_schedule(app, schedule, result);
  add_plan(app, simulating, mesh, result);
  add_generate(app, generating, result);
  add_export(app, exporting, result);
  add_tokenizer(app, tokenizing, result);
  add_checkpoint(app, checkpointing, result);
  add(app, kBench);
  add_doctor(app, doctoring, result);
  return parse_and_run(app, argc, argv, result);
}

}  // namespace weft::cli
