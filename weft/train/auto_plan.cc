// Plans a recipe with `parallel.plan = "auto"` on the machines that its ranks run on.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/comm/texts.h"
#include "weft/train/planning.h"

namespace weft::train {
namespace {

constexpr const char* kAxes[] = {"dp", "fsdp", "tp", "pp", "cp", "ep"};
constexpr double kSearchSeconds = 5;
constexpr double kGiB = 1073741824;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The plan sets the axes, so the recipe must not.
void refuse_given_axes(const Config& config) {
  for (const char* axis : kAxes) {
    const std::string key = std::string("parallel.") + axis;
    if (config.origin(key) == "default") continue;
    throw Error(Errc::kBadConfig, config.origin(key) + ": " + key +
                                      " is set, but parallel.plan = \"auto\" chooses it; leave "
                                      "one of them out");
  }
}

// One sample, and the samples of a rank when all ranks are replicas.
std::vector<std::int64_t> measured_batches(const Config& config, int world) {
  const std::int64_t share = config.get_int("train.batch") / world;
  return share > 1 ? std::vector<std::int64_t>{1, share} : std::vector<std::int64_t>{1};
}

std::string too_large(const plan::Found& found, const plan::Job& job) {
  std::string text = "parallel.plan = \"auto\": no layout of " + plan::describe(job.cluster);
  if (found.nearest.empty())
    return text + " divides a batch of " + std::to_string(job.layout.global_batch) +
           " samples and the model's blocks over all ranks; use another number of ranks";
  const plan::Candidate& nearest = found.nearest.front();
  char memory[96];
  std::snprintf(memory, sizeof memory, ") needs %.4g GiB of a rank, which has %.4g GiB",
                nearest.step.peak().total() / kGiB, nearest.step.capacity.front() / kGiB);
  return text + " holds the model; the nearest (" + plan::describe(nearest.layout) + memory;
}

// Rank 0's answer to all ranks: the plan, or why there is none.
std::string choose(const plan::Job& job, const Config& config) {
  nlohmann::json answer;
  try {
    plan::SearchOptions options;
    options.space = space_of(config);
    options.seconds = kSearchSeconds;
    options.clock = now;
    options.keep = 1;
    const plan::Found found = plan::search(job, options);
    if (found.best.empty()) {
      answer["error"] = too_large(found, job);
    } else {
      const plan::Candidate& best = found.best.front();
      answer["layout"] = plan::describe(best.layout);
      answer["keys"] = recipe_fragment(best.layout, job);
      answer["step_s"] = best.step.seconds;
      answer["memory_gib"] = best.step.peak().total() / kGiB;
    }
  } catch (const Error& error) {
    answer["error"] = error.message();
  }
  return answer.dump();
}

// Sets the keys of a fragment of a recipe.
void set_keys(Config& config, const std::string& fragment) {
  std::istringstream lines(fragment);
  std::string table;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (!line.empty() && line.front() == '[') table = line.substr(1, line.size() - 2) + ".";
    if (equals == std::string::npos) continue;
    std::string assignment = table;
    assignment += line.substr(0, equals) + "=" + line.substr(equals + 3);
    config.set(assignment, "parallel.plan = \"auto\"");
  }
}

}  // namespace

ChosenPlan plan_recipe(Config& config, const Group& world) {
  refuse_given_axes(config);
  const double start = now();
  PlannedOptions measured;
  const plan::Cluster cluster = profile_machine(world);
  measured.blocks = std::make_shared<const plan::Profile>(
      profile_recipe(config, world, {.batches = measured_batches(config, world.size())}));
  const plan::Job job = planned_job(config, cluster, measured);
  const std::string text =
      comm::broadcast_text(world, world.rank() == 0 ? choose(job, config) : std::string());
  const nlohmann::json answer = parse_json(text, "the plan of rank 0", {.depth = 4});
  if (answer.contains("error")) throw Error(Errc::kBadConfig, answer["error"].get<std::string>());
  set_keys(config, answer["keys"].get<std::string>());
  // A resumed run keeps this plan.
  config.set("parallel.plan=\"manual\"", "parallel.plan = \"auto\"");
  return {answer["layout"].get<std::string>(), answer["step_s"].get<double>(),
          answer["memory_gib"].get<double>(), now() - start};
}

}  // namespace weft::train
