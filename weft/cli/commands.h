// The subcommands of `weft`: what each was asked, and the function that does it. Each returns the
// exit code; what it throws main() turns into one line on stderr and the error's exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/launcher.h"

namespace weft::cli {

struct TrainCommand {
  std::string recipe;
  std::optional<int> ranks;              // none: 1, or what the launcher says
  std::vector<std::string> assignments;  // a.b=c
  std::string name;                      // of the run; empty: date and recipe
  std::string progress = "auto";
  std::string trace;   // steps=FIRST:LAST
  std::string resume;  // "", "true", or "auto": where there is something to resume
  bool dry_run = false;
  bool json = false;
  bool check = false;  // against the recipe's expected.toml
  std::string http;    // address of the live page; empty: none
};
int train(const TrainCommand& command);

int run(const launch::LaunchOptions& options);

struct RunsCommand {
  std::string folder = "runs";  // of run folders
  bool json = false;
};
int list_runs(const RunsCommand& command);

struct TopCommand {
  std::string run;    // folder, or name in runs/
  bool once = false;  // print the view once
  std::string http;   // as in TrainCommand
};
int top(const TopCommand& command);

struct ReportCommand {
  std::vector<std::string> runs;  // folders, or names in runs/
  std::string output;             // empty: report.html in the folder of a single run, else here
};
int report(const ReportCommand& command);

struct NewCommand {
  std::string folder;  // to make; its last part is the program's name
};
int new_project(const NewCommand& command);

struct DoctorCommand {
  bool json = false;
  bool topology = false;  // of the job that it is a rank of, instead of this machine's checks
};
int doctor(const DoctorCommand& command);

// Which collective over which ranks: what `schedule show` and `plan simulate` both ask.
struct ScheduleChoice {
  std::string collective = "all_reduce";
  std::optional<int> ranks;       // none: those of the topology, else 8
  std::string hosts;              // "2x4,3": two hosts of four ranks, one of three
  std::string grid;               // "4x8"
  std::string topology;           // a TOML file (schedule/topology.h)
  std::string across;             // hierarchical: what goes between the hosts
  std::uint64_t chunk_bytes = 0;  // of f32; 0: the algorithm's own
  std::optional<int> radix;       // of knomial
  int root = 0;
};

// Of a pipeline schedule.
struct PipelineChoice {
  std::optional<int> stages;          // ranks in a row; none: 4
  std::optional<int> micro_batches;   // none: 8
  std::optional<int> virtual_stages;  // of each rank; none: as few as the schedule can do
  // forward, backward of the input, of the weights, and maybe a message; empty: 1,1,1,0
  std::vector<double> costs;
  std::optional<int> memory;  // of the automatic one
};

struct ScheduleCommand {
  std::string algorithm;  // of collectives or pipelines; or "gossip"
  ScheduleChoice choice;
  std::int64_t count = 0;            // 0: a length that shows the algorithm well
  std::optional<std::string> graph;  // of gossip
  std::optional<std::uint64_t> seed;
  PipelineChoice pipeline;
  std::string svg;  // file to write; empty: a table on stdout
  bool json = false;
};
int schedule_show(const ScheduleCommand& command);
int schedule_list(bool json);

struct SimulateCommand {
  std::vector<std::string> algorithms;
  ScheduleChoice choice;
  std::vector<std::uint64_t> sizes = {25'000'000};  // bytes of the longer of input and output
  bool json = false;
};
int plan_simulate(const SimulateCommand& command);

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
  std::string run;  // a folder, or a name in runs/
  std::string output;
};
int export_model(const ExportCommand& command);

struct TokenizerCommand {
  std::vector<std::string> files;  // to learn from, or one to encode
  std::string output = "tokenizer.json";
  std::int64_t vocabulary = 8192, min_count = 2;
  std::vector<std::string> specials;  // empty: <|endoftext|>
  std::string tokenizer;              // "bytes", a tokenizer.json, or the folder of one
  std::string text;
  std::vector<std::string> ids;  // of decode; empty: from stdin
  bool recognize = false;        // "<|endoftext|>" in the text is the token
  bool json = false;
};
int tokenizer_train(const TokenizerCommand& command);
int tokenizer_encode(const TokenizerCommand& command);
int tokenizer_decode(const TokenizerCommand& command);

struct CheckpointCommand {
  std::string checkpoint;  // a checkpoint's folder, a run's folder, or its name in runs/
  std::string part;        // empty: all of them to show, "model" to convert
  std::string output;      // a file NAME.safetensors, or a folder
  std::uint64_t max_shard_bytes = 5'000'000'000;  // of a file in the folder; 0: no limit
  bool as_checkpoint = false;                     // the output is a folder of checkpoints
  bool json = false;
};
int checkpoint_list(const CheckpointCommand& command);
int checkpoint_show(const CheckpointCommand& command);
int checkpoint_verify(const CheckpointCommand& command);
int checkpoint_convert(const CheckpointCommand& command);

struct MeshCommand {
  std::string axes;          // "dp=2,tp=2"
  std::optional<int> ranks;  // none: those of the hosts, else the product of the sizes
  std::string hosts;         // as ScheduleChoice
  std::string svg;           // file to write; empty: a table on stdout
  bool json = false;
};
int plan_show(const MeshCommand& command);

// Reads the command line and does what it says. Prints usage errors itself.
int weft_main(int argc, char** argv);

}  // namespace weft::cli
