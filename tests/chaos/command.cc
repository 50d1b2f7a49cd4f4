// `weft chaos`: trains under faults and compares with an undisturbed run.
#include "tests/chaos/chaos.h"

#include <filesystem>
#include <fstream>
#include <iostream>

#include "weft/base/error.h"
#include "weft/cli/commands.h"

namespace weft::cli {
namespace {

constexpr const char* kExample = "; for example: weft chaos --kills 10 -- train shapes -n 2";

// The words of this process, as they were given.
std::string command_line() {
  std::ifstream words("/proc/self/cmdline");
  std::string line = "weft";
  std::string word;
  std::getline(words, word, '\0');  // the program
  while (std::getline(words, word, '\0')) line += " " + word;
  return line;
}

ChaosJob job_of(const ChaosCommand& command) {
  if (command.job.empty()) {
    WEFT_REQUIRE(!command.plans.empty(),
                 std::string("weft chaos needs a job, or --plans") + kExample);
    ChaosJob shapes;
    shapes.train.recipe = "shapes";
    return shapes;
  }
  WEFT_REQUIRE(command.job[0] == "train",
               "weft chaos: the job is \"" + command.job[0] + "\", and must be train" + kExample);
  return parse_chaos_job({command.job.begin() + 1, command.job.end()});
}

chaos::Options options_of(const ChaosCommand& command) {
  chaos::Options options;
  options.faults = chaos::parse_faults(command.faults);
  if (!command.plans.empty()) options.plans = chaos::parse_plans(command.plans);
  const auto [job, launching] = job_of(command);
  options.weft = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft";
  options.command = command_line();
  options.recipe = job.recipe;
  options.settings = job.assignments;
  options.max_replacements = job.launching.max_replacements;
  options.min_ranks = job.launching.min_ranks;
  if (!options.max_replacements && options.min_ranks > 0) options.max_replacements = 0;
  options.spares = job.launching.spares;
  options.launching = launching;
  options.count = command.count;
  options.seed = command.seed;
  options.fail = command.fail;
  options.mean_s = command.mean_s;
  options.total_s = command.mean_s > 0 ? 60 * command.minutes : 0;
  const int ranks = options.plans.empty() ? 2 : chaos::kPlanRanks;
  options.ranks = job.ranks.empty() ? std::to_string(ranks) : job.ranks;
  WEFT_REQUIRE(options.plans.empty() || options.ranks == std::to_string(chaos::kPlanRanks),
               "--plans are for " + std::to_string(chaos::kPlanRanks) + " ranks; leave out -n");
  options.hosts = command.hosts;
  options.overlap = command.overlap;
  options.same_weights = command.weights == "equal";
  options.folder = std::filesystem::absolute(command.output).string();
  options.limit_s = command.limit_s;
  options.tell = [](const std::string& line) { std::cerr << "weft: chaos: " << line << std::endl; };
  return options;
}

}  // namespace

int chaos(const ChaosCommand& command) {
  const chaos::Options options = options_of(command);
  const chaos::Outcome outcome = chaos::run(options);
  if (command.json) {
    std::cout << chaos::to_json(outcome) << std::endl;
  } else {
    std::cout << chaos::to_text(outcome) << options.folder << "/report.html" << std::endl;
  }
  const int code = chaos::exit_code(outcome);
  if (code == 3) std::cerr << "weft: chaos: a fault did not happen, so this proves nothing\n";
  return code;
}

}  // namespace weft::cli
