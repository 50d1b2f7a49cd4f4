// Defines the options of `weft plan`.
#include "weft/cli/internal/help.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

constexpr About kPlan{
    "plan",
    "Choose how to split a model over ranks, and predict time and memory: of a step, of "
    "collectives, of published runs.",
    R"(Examples:
  weft plan auto recipes/bible --cluster clusters/dgx-a100.toml --nodes 2 --html plan.html
  weft plan profile -o this-machine.toml     measure this machine
  weft plan profile -o blocks.toml recipes/bible
  weft plan predict scenarios.jsonl          one scenario a line, one answer a line
  weft plan validate bench/published
  weft plan simulate ring,double_binary_tree,hierarchical --hosts 1250x8
  weft plan simulate ring,torus --grid 32x32 --size 1MiB,1GiB
  weft plan simulate hierarchical --topology cluster.toml --across recursive_doubling --json
  weft plan show pp=2,dp=2,tp=2 --hosts 2x4)"};

void add_mesh(CLI::App& plan, MeshCommand& command, int& result) {
  auto* show = plan.add_subcommand(
      "show", "Show a mesh of ranks: the place of each rank, and which axes cross hosts");
  show->add_option("axes", command.axes,
                   "Axes with their sizes, such as pp=2,dp=0,tp=2 (of dp, fsdp, tp, cp, ep, pp). "
                   "Adjacent ranks belong to the last axis. "
                   "0: the rest")
      ->required();
  show->add_option("-n,--ranks", command.ranks,
                   "Number of ranks (default: those of the hosts, else the product of the sizes)");
  show->add_option("--hosts", command.hosts,
                   "Ranks of each host: 2x4,3 means two hosts with four ranks and one with three");
  show->add_option("--svg", command.svg, "Write the picture to this file");
  show->add_flag("--json", command.json, "Print a JSON line for each rank on stdout");
  show->callback([&] { result = plan_show(command); });
}

void add_simulate(CLI::App& plan, SimulateCommand& command, int& result) {
  auto* simulate = plan.add_subcommand(
      "simulate",
      "Simulate algorithms step by step over the links of a topology: time, bytes, critical path");
  simulate
      ->add_option("algorithms", command.algorithms,
                   "Names of algorithms, with commas between; weft schedule list shows all")
      ->required()
      ->delimiter(',');
  add_choice(*simulate, command.choice);
  simulate
      ->add_option("--size", command.sizes,
                   "Bytes of the message (the longer of input and output), such as 64KiB or 25MB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  simulate->add_flag("--json", command.json, "Print JSON lines on stdout");
  simulate->callback([&] { result = plan_simulate(command); });
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
  search
      ->add_option("--set", command.assignments,
                   "Set a key of the recipe: key=value. May be repeated")
      ->allow_extra_args(false);
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
  search
      ->add_option("--vocab", command.vocabulary,
                   "Tokens of the vocabulary. 0: by the recipe's tokenizer")
      ->check(CLI::Range(0, 1'000'000'000));
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
  profile
      ->add_option("--set", command.assignments,
                   "Set a key of the recipe: key=value. May be repeated")
      ->allow_extra_args(false);
  profile
      ->add_option("--vocab", command.vocabulary,
                   "Tokens of the vocabulary. 0: by the recipe's tokenizer")
      ->check(CLI::Range(0, 1'000'000'000));
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

}  // namespace

void add_plan(CLI::App& app, PlanCommands& commands, const OwnFunctions& own, int& result) {
  auto* sub = add(app, kPlan);
  sub->require_subcommand(1);
  add_auto(*sub, commands.search, result);
  add_profile(*sub, commands.profile, result);
  add_predict(*sub, commands.predict, result);
  add_validate(*sub, commands.validate, own.plan_validate, result);
  add_simulate(*sub, commands.simulate, result);
  add_mesh(*sub, commands.mesh, result);
}

}  // namespace weft::cli
