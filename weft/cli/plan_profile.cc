// `weft plan profile`: measures this machine, or the blocks of a recipe or of a program.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/output_file.h"
#include "weft/cli/internal/ranks.h"
#include "weft/cli/internal/start_ranks.h"
#include "weft/comm/init.h"
#include "weft/launch/launcher.h"
#include "weft/plan/cluster/cluster_file.h"
#include "weft/plan/model/profile.h"
#include "weft/train/planner/planning.h"
#include "weft/train/recipe.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

bool is_program(const std::string& word) {
  std::error_code ignored;
  const fs::perms any = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  return fs::is_regular_file(word, ignored) &&
         (fs::status(word, ignored).permissions() & any) != fs::perms::none;
}

void write_profile(const std::string& text, const std::string& output) {
  if (output.empty()) {
    std::cout << text << std::flush;
  } else {
    write_file_atomic(output, text);
    std::cerr << "written to " << output << '\n';
  }
}

// The program measures its blocks where it would train (Trainer::run).
int profile_program(const ProfileCommand& command, int ranks) {
  // If the program fails, an older profile stays.
  const TempDir folder(temporary_folder());
  const std::string file = fs::absolute(folder / "profile.toml");
  std::error_code ignored;
  ::setenv("WEFT_PROFILE", file.c_str(), 1);
  launch::LaunchOptions launching;
  launching.program = command.target;
  launching.nproc_per_node = std::to_string(ranks);
  const int result = launch::launch(launching);
  const bool there = fs::exists(file, ignored);
  const std::string text = there ? read_file(file, plan::kMaxProfileBytes) : "";
  if (!there) {
    if (result != 0) return result;
    throw Error(
        Errc::kInvalidArgument,
        command.target.front() + " has not called weft::Trainer::run(); nothing was measured");
  }
  write_profile(text, command.output);
  return 0;
}

int profile_rank(const ProfileCommand& command, const std::optional<Config>& recipe) {
  use_threads();
  const Group world = comm::init({});
  const std::string text =
      recipe ? to_toml(train::profile_recipe(
                   *recipe, world, {.batches = command.batches, .vocabulary = command.vocabulary}))
             : to_toml(train::profile_machine(world));
  if (world.rank() == 0) write_profile(text, command.output);
  world.barrier();
  return 0;
}

}  // namespace

int plan_profile(const ProfileCommand& command) {
  if (!command.output.empty()) check_output("--output", command.output);
  const int ranks = command.ranks.value_or(processors());
  const auto& target = command.target;
  if (!std::is_sorted(command.batches.begin(), command.batches.end(), std::less_equal<>()))
    throw Error(Errc::kInvalidArgument, "--batches must ascend");
  WEFT_REQUIRE(command.batches.size() <= plan::kMaxProfileBatches,
               "--batches has " + std::to_string(command.batches.size()) + " numbers; give " +
                   std::to_string(plan::kMaxProfileBatches) + " or fewer");
  const bool is_recipe = !target.empty() && !is_program(target.front());
  WEFT_REQUIRE(is_recipe || command.of_recipe.empty(),
               command.of_recipe + " is for a recipe; leave it out");
  if (!target.empty() && !is_recipe) {
    share_cores(ranks);
    return profile_program(command, ranks);
  }
  WEFT_REQUIRE(target.size() < 2, "\"" + target[1] + "\" follows the recipe " + target.front() +
                                      "; give one recipe, and options before it");
  std::optional<Config> recipe;
  if (!target.empty()) recipe = train::load_recipe(target.front(), command.assignments);
  if (comm::discover(comm::Environment::process()).source != "alone")
    return start_ranks(command.ranks, [&] { return profile_rank(command, recipe); });
  share_cores(ranks);
  if (ranks == 1) return profile_rank(command, recipe);
  launch::LaunchOptions launching;
  launching.nproc_per_node = std::to_string(ranks);
  launching.rank0_keeps_terminal = true;
  return launch::launch_forked(launching, [&](int) { return profile_rank(command, recipe); });
}

}  // namespace weft::cli
