// The subcommands of `weft`: the options of each and the function that runs it. Each function
// returns the exit code. weft_main() turns an exception into one line on stderr and an exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/cli/plan_commands.h"
#include "weft/launch/launcher.h"

namespace weft::cli {

struct TrainCommand {
  std::string recipe;
  std::string ranks;                     // "4" or "2:4"; empty: 1, or the number of the launcher
  std::vector<std::string> assignments;  // settings of recipe keys: "a.b=c"
  std::string name;                      // name of the run; empty: date and recipe
  std::string progress = "auto";
  std::string trace;   // "steps=FIRST:LAST"; empty: no trace
  std::string resume;  // "": new run; "true": resume; "auto": resume if there is such a run
  bool dry_run = false;
  bool json = false;
  bool check = false;  // compare the result with the recipe's expected.toml
  // How its ranks run: the live page, recovery, nodes. train() sets nproc_per_node, by `ranks`.
  launch::LaunchOptions launching;
};
int train(const TrainCommand& command);

int run(const launch::LaunchOptions& options);

struct ChaosCommand {
  std::vector<std::string> job;  // words after "--": train, and its options
  std::string faults = "kill";
  int count = 10;  // faults, over all plans
  std::uint64_t seed = 1;
  double mean_s = 0, minutes = 30;  // faults at random times; mean 0: at random steps
  std::string plans;                // names, or all; empty: the recipe as it is
  std::string fail;                 // failpoints
  std::string weights = "equal";    // or "any"
  std::string output = "chaos";     // folder of the report and the runs
  int hosts = 1;
  bool overlap = false;
  double limit_s = 0;  // 0: from the undisturbed job
  bool json = false;
};
int chaos(const ChaosCommand& command);
// The job of `weft chaos`, as far as it is passed on.
struct ChaosJob {
  TrainCommand train;                  // recipe, ranks, settings, and how lost ranks are replaced
  std::vector<std::string> launching;  // other options of the launch, as they were given
};
// The options of `weft train` in the words after "-- train". Throws Error(kInvalidArgument) for one
// that `weft chaos` does not pass on.
ChaosJob parse_chaos_job(const std::vector<std::string>& words);

struct RunsCommand {
  std::string folder = "runs";  // folder that contains the run folders
  bool json = false;
};
int list_runs(const RunsCommand& command);

struct TopCommand {
  std::string run;    // run folder, or name of a run in runs/
  bool once = false;  // print the view once
  std::string http;   // address of the live page; empty: none
};
int top(const TopCommand& command);

struct ScaleCommand {
  std::string job;      // run folder, name of a run in runs/, or process number of the launcher
  int ranks = 0;        // number of ranks that the job shall have
  int timeout_s = 120;  // longest wait until it has them
};
int scale(const ScaleCommand& command);

struct StopCommand {
  std::string job;  // run folder, name of a run in runs/, or launcher's process number
  std::optional<double> grace_s;  // none: that of the launcher
};
int stop(const StopCommand& command);

struct StatusCommand {
  std::string run;  // run folder, name of a run in runs/, or a process id
  bool json = false;
};
int status(const StatusCommand& command);

struct ReportCommand {
  std::vector<std::string> runs;  // run folders, or names of runs in runs/
  std::string output;             // empty: report.html, in the run folder if there is one run
};
int report(const ReportCommand& command);

struct NewCommand {
  std::string folder;  // folder to create; its last part becomes the program's name
};
int new_project(const NewCommand& command);

struct DoctorCommand {
  bool json = false;
  bool topology = false;  // print the topology of the job of this rank; do not check the machine
};
int doctor(const DoctorCommand& command);

struct GenerateCommand {
  std::string run;  // a run's folder, its name in runs/, or a Hugging Face folder
  std::string prompt;
  std::int64_t tokens = 200, top_k = 0;
  double temperature = 0.8, top_p = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> stop;
};
int generate(const GenerateCommand& command);

struct ExportCommand {
  std::string run;  // run folder, or name of a run in runs/
  std::string output;
};
int export_model(const ExportCommand& command);

struct TokenizerCommand {
  std::vector<std::string> files;  // training: the text files; encoding: one file
  std::string output = "tokenizer.json";
  std::int64_t vocabulary = 8192, min_count = 2;
  std::vector<std::string> specials;  // empty: <|endoftext|>
  std::string tokenizer;              // "bytes", a tokenizer.json, or the folder of one
  std::string text;
  std::vector<std::string> ids;  // token ids to decode; empty: read them from stdin
  bool recognize = false;        // encode "<|endoftext|>" in the text as the special token
  bool json = false;
};
int tokenizer_train(const TokenizerCommand& command);
int tokenizer_encode(const TokenizerCommand& command);
int tokenizer_decode(const TokenizerCommand& command);

struct LinearCommand {
  std::string file;          // LIBSVM file, plain or gzip
  std::string model;         // training: file to write, "none", or empty: the file's name + .model
  std::optional<int> ranks;  // none: 1, or the number of the launcher
  std::string loss = "logistic", rule = "cocoa+", division = "auto", sigma = "measured";
  std::optional<double> l2, c;  // c: l2 = 1 / (c n); none: c 1, or l2 0 where l1 is given
  double l1 = 0, bias = -1;
  bool zero_based = false;
  std::uint32_t max_index = 100'000'000;
  std::uint64_t max_classes = 1000;
  double gap = 1e-3, absolute_gap = 0, local_passes = 0;
  std::int64_t max_passes = 1000;
  int threads = 1, cluster_size = 1;  // Hogwild! only, as the next lines
  std::string locks = "none";
  std::int64_t epochs = 10, exchange_rows = 0;
  double step = 1, decay = 0.8;
  std::uint64_t seed = 1;
  std::string progress = "auto";
  std::string output;          // prediction: file to write; empty: stdout
  bool probabilities = false;  // prediction: the probability of each class
  bool json = false;
};
int linear_train(const LinearCommand& command);
int linear_predict(const LinearCommand& command);

struct CheckpointCommand {
  std::string checkpoint;  // a checkpoint's folder, a run's folder, or its name in runs/
  std::string part;        // "model" or "optimizer"; empty: show all parts, convert the model
  std::string output;      // file NAME.safetensors, or a folder
  // Most bytes of a file in the folder. 0: no limit; none: 5 GB.
  std::optional<std::uint64_t> max_shard_bytes;
  bool as_checkpoint = false;  // copy into `output`, a folder of checkpoints
  bool quick = false;          // listing: do not read all bytes
  bool json = false;
};
int checkpoint_list(const CheckpointCommand& command);
int checkpoint_show(const CheckpointCommand& command);
int checkpoint_verify(const CheckpointCommand& command);
int checkpoint_convert(const CheckpointCommand& command);

// Functions of a program of its own (internal/programs.h). `weft` has none, and starts the program.
struct OwnFunctions {
  std::string_view program = {};
  int (*chaos)(const ChaosCommand&) = nullptr;
  int (*plan_validate)(const ValidateCommand&) = nullptr;
  int (*linear_train)(const LinearCommand&) = nullptr;
  int (*linear_predict)(const LinearCommand&) = nullptr;
};

// Parses the command line, runs the subcommand and returns the exit code. Prints errors on stderr.
int weft_main(int argc, char** argv, const OwnFunctions& own = {});

}  // namespace weft::cli
