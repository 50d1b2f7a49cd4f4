// Defines the options of the commands of `weft plan` that need the planner.
#include <cstdint>
#include <memory>
#include <string>

#include "weft/cli/internal/help.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

void add_vocabulary(CLI::App& sub, std::int64_t& vocabulary) {
  sub.add_option("--vocab", vocabulary, "Tokens of the vocabulary. 0: by the recipe's tokenizer")
      ->check(CLI::Range(0, 1'000'000'000));
}

void add_auto(CLI::App& plan, AutoCommand& command, int& result) {
  auto* search = plan.add_subcommand(
      "auto",
      "Choose the layout of a recipe on a cluster: axes, micro-batches, schedule, recomputation");
  search
      ->add_option("recipe", command.recipe,
                   "Folder with a recipe.toml, the file itself, or the name of a recipe")
      ->required();
  search
      ->add_option("--cluster", command.cluster,
                   "Cluster file, such as clusters/dgx-a100.toml, or the name of a known system")
      ->required();
  search->add_option("--nodes", command.nodes, "Number of nodes (default: those of the file)")
      ->check(CLI::Range(1, 1'000'000));
  add_assignments(*search, command.assignments);
  search->add_option("--goal", command.goal, "What to minimize: time, cost, memory or energy");
  search->add_option("--profile", command.profile,
                     "Measured blocks of this recipe (weft plan profile RECIPE)");
  search
      ->add_option("--price", command.price,
                   "Dollars an hour of a device. 0: those of the cluster file")
      ->check(CLI::Range(0.0, 1e6));
  search
      ->add_option("--tokens", command.tokens,
                   "Tokens of the whole training: print its time and cost. 0: none")
      ->check(CLI::Range(0.0, 1e18));
  add_vocabulary(*search, command.vocabulary);
  search
      ->add_option("--codecs", command.codecs,
                   "Codecs between replicas to try, with commas between, such as bf16,int8:64")
      ->delimiter(',')
      ->allow_extra_args(false);
  search
      ->add_option("--strategies", command.strategies,
                   "Strategies between replicas to try, with their periods, such as "
                   "local_sgd:16,diloco:100")
      ->delimiter(',')
      ->allow_extra_args(false);
  search->add_option("--seconds", command.seconds, "Most seconds of the search")
      ->check(CLI::Range(0.1, 3600.0));
  search->add_flag("--knee,!--no-knee", command.knee,
                   "Search on fewer and more nodes, too, or do not (default: do)");
  search->add_option("--html", command.html, "Write a page with pictures to this file");
  search->add_flag("--json", command.json, "Print the plans as one JSON object on stdout");
  search->callback([&] { result = plan_auto(command); });
}

void add_profile(CLI::App& plan, ProfileCommand& command, int& result) {
  auto* profile = plan.add_subcommand(
      "profile",
      "Measure this machine: a cluster file. With a recipe, or a program and its arguments, behind "
      "the options: its blocks, a profile");
  profile
      ->add_option("-n,--ranks", command.ranks,
                   "Ranks that measure at once (default: one for each processor)")
      ->check(CLI::Range(1, 4096));
  profile->add_option("-o,--output", command.output, "File to write (default: stdout)");
  profile
      ->add_option("--batches", command.batches,
                   "Samples of each measurement of a recipe, ascending, with commas between")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1'000'000));
  add_assignments(*profile, command.assignments);
  add_vocabulary(*profile, command.vocabulary);
  profile->formatter(std::make_shared<HelpFormatter>("[RECIPE | PROGRAM [ARGUMENTS]...]"));
  profile->prefix_command();  // words after the recipe or the program belong to it
  profile->callback([&command, &result, profile] {
    command.target = profile->remaining();
    for (const char* option : {"--batches", "--set", "--vocab"}) {
      if (profile->count(option) > 0) command.of_recipe = option;
    }
    result = plan_profile(command);
  });
}

void add_predict(CLI::App& plan, PredictCommand& command, int& result) {
  auto* predict = plan.add_subcommand(
      "predict",
      "Predict the step of each scenario of a file: time, throughput, memory, and their parts");
  predict
      ->add_option("file", command.file,
                   "File with one scenario a line, as JSON with model, cluster and plan "
                   "(docs/planning-reference.md); - for stdin")
      ->required();
  predict->callback([&] { result = plan_predict(command); });
}

void add_validate(CLI::App& plan, ValidateCommand& command, int (*run)(const ValidateCommand&),
                  int& result) {
  auto* validate = plan.add_subcommand(
      "validate", "Compare predictions with published measurements, table by table");
  validate->add_option("folder", command.folder, "Folder with the tables (*.csv)");
  validate->add_flag("--all", command.all, "Print every row");
  validate->add_flag("--fit", command.fit,
                     "Fit each generation's constants to a part of the rows, and test them on the "
                     "rest. Takes minutes");
  validate->add_option("--write", command.page,
                       "Page whose generated part is replaced, such as docs/planning-results.md");
  validate->callback([&, run] { result = run(command); });
}

constexpr const char* kPlannerExamples = R"(Examples:
  weft plan auto recipes/bible --cluster clusters/dgx-a100.toml --nodes 2 --html plan.html
  weft plan profile -o this-machine.toml     measure this machine
  weft plan profile -o blocks.toml recipes/bible
  weft plan predict scenarios.jsonl          one scenario a line, one answer a line
  weft plan validate bench/published)";

}  // namespace

void add_planner(CLI::App& plan, PlanCommands& commands, const OwnFunctions& own, int& result) {
  plan.description(
      "Choose how to split a model over ranks, and predict time and memory: of a step, of "
      "collectives, of published runs.");
  const std::string others = plan.get_footer();
  plan.footer(kPlannerExamples + others.substr(others.find('\n')));
  add_auto(plan, commands.search, result);
  add_profile(plan, commands.profile, result);
  add_predict(plan, commands.predict, result);
  add_validate(plan, commands.validate, own.plan_validate, result);
}

}  // namespace weft::cli
