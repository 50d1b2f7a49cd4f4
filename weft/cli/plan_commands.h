// Options and functions of `weft schedule` and `weft plan` (commands.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::cli {

// A collective and its ranks: options of both `schedule show` and `plan simulate`.
struct ScheduleChoice {
  std::string collective = "all_reduce";
  std::optional<int> ranks;       // world size; none: that of the topology, else 8
  std::string hosts;              // "2x4,3": two hosts of four ranks, one of three
  std::string grid;               // "4x8": rows x columns of a torus
  std::string topology;           // TOML file (schedule/topology.h)
  std::string across;             // hierarchical only: algorithm between the outermost groups
  std::uint64_t chunk_bytes = 0;  // bytes of a chunk of f32 elements; 0: the algorithm's default
  std::optional<int> radix;       // knomial only: children of a tree node plus one
  int root = 0;
};

// Options of a pipeline schedule.
struct PipelineChoice {
  std::optional<int> stages;          // pipeline stages, each a rank; none: 4
  std::optional<int> micro_batches;   // none: 8
  std::optional<int> virtual_stages;  // per rank; none: the fewest that the schedule supports
  // times of forward, backward of inputs, backward of weights and, optionally, a message; empty:
  // 1,1,1,0
  std::vector<double> costs;
  std::optional<int> memory;  // automatic schedule only: most micro-batches that a rank holds
};

struct ScheduleCommand {
  std::string algorithm;  // algorithm of a collective, pipeline schedule, or "gossip"
  ScheduleChoice choice;
  std::int64_t count = 0;             // elements; 0: a number that shows the algorithm well
  std::optional<std::string> graph;   // gossip only
  std::optional<std::uint64_t> seed;  // gossip with --graph random_matching only
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

struct AutoCommand {
  std::string recipe;
  std::vector<std::string> assignments;
  std::string cluster;                  // TOML file, or the name of a known system
  std::optional<int> nodes;             // none: those of the file, else 1
  std::string goal = "time";            // time, cost, memory or energy
  double price = 0;                     // dollars an hour of a device; 0: those of the cluster
  double tokens = 0;                    // of the whole training, for its time and cost; 0: none
  std::int64_t vocabulary = 0;          // tokens; 0: by the recipe's tokenizer
  std::vector<std::string> codecs;      // codecs of the exchange to try besides none
  std::vector<std::string> strategies;  // to try besides that of the recipe: "local_sgd:16"
  std::string profile;                  // file of plan_profile for this recipe; empty: none
  double seconds = 9;                   // of the search
  bool knee = true, json = false;
  std::string html;  // page to write; empty: none
};
int plan_auto(const AutoCommand& command);

struct ProfileCommand {
  // Recipe, or a program that trains with weft::Trainer followed by its arguments. Empty: the
  // machine.
  std::vector<std::string> target;
  std::optional<int> ranks;  // that measure at once; none: one for each processor
  std::vector<std::string> assignments;
  std::vector<std::int64_t> batches = {1, 4};  // samples of each measurement of a recipe
  std::int64_t vocabulary = 0;                 // as in AutoCommand
  std::string output;                          // file; empty: stdout
  std::string of_recipe;                       // an option that was given and is for recipes only
};
int plan_profile(const ProfileCommand& command);

struct PredictCommand {
  std::string file;  // one scenario a line; "-": stdin
};
int plan_predict(const PredictCommand& command);

struct ValidateCommand {
  std::string folder = "bench/published";  // folder with the tables
  std::string page;                        // page whose generated part is written; empty: stdout
  bool all = false;                        // print every row
  bool fit = false;                        // cross-checks against overfitting
};
int plan_validate(const ValidateCommand& command);

struct MeshCommand {
  std::string axes;          // "dp=2,tp=2"
  std::optional<int> ranks;  // world size; none: that of the hosts, else the product of the sizes
  std::string hosts;         // as in ScheduleChoice
  std::string svg;           // file to write; empty: a table on stdout
  bool json = false;
};
int plan_show(const MeshCommand& command);

}  // namespace weft::cli
