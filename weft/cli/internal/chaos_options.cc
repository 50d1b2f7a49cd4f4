// Defines the options of `weft chaos`.
#include <algorithm>
#include <array>

#include "weft/base/error.h"
#include "weft/cli/internal/help.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

constexpr About kChaos{
    "chaos",
    "Train under faults and compare with an undisturbed run: times of recovery, lost steps, bytes "
    "of the weights. Exits with 1 if recovery fails, with 3 if a fault did not happen.",
    R"(Examples:
  weft chaos --kills 20 --seed 7 -- train shapes -n 4 --set train.max_steps=500
  weft chaos --kills 200 --plans all                  every form of parallelism
  weft chaos --mean 60 --minutes 30 -- train fashion-mnist -n 2 --set train.eval_every=0
  weft chaos --faults kill,stop,pause,slow,term,failpoint --count 12 -- train shapes -n 2
  sudo weft chaos --faults partition --count 3 --hosts 2 -- train shapes -n 4
  sudo weft chaos --faults disk-full,kill --count 6 -- train shapes -n 2
  weft chaos --count 0 --fail update.middle:rank=1:step=7 -- train shapes -n 2)"};

// Options of the job. All others are refused, so that no new one is ignored. chaos::Options has a
// field for each of the first list. The words of the second list go to the launcher.
constexpr std::array kUnderstood{"recipe",           "ranks",     "set",
                                 "max-replacements", "min-ranks", "spares"};
constexpr std::array kPassedOn{"on-hang", "grace"};

template <std::size_t kCount>
bool is_one_of(const std::array<const char*, kCount>& names, const CLI::Option& option) {
  return std::find(names.begin(), names.end(), option.get_single_name()) != names.end();
}

}  // namespace

void add_chaos(CLI::App& app, ChaosCommand& command, const std::vector<std::string>& beyond,
               int (*run)(const ChaosCommand&), int& result) {
  auto* sub = add(app, kChaos);
  sub->add_option(
      "--faults", command.faults,
      "Kinds of faults: kill, stop, pause, slow, term, disk-full, partition, failpoint");
  sub->add_option("--count,--kills", command.count, "Faults to apply, over all plans")
      ->check(CLI::Range(0, 1'000'000));
  sub->add_option("--seed", command.seed, "Seed of the faults");
  sub->add_option("--mean", command.mean_s,
                  "Mean seconds between two faults, at random times (Poisson). 0: at random steps")
      ->check(CLI::Range(0.0, 1e6));
  sub->add_option("--minutes", command.minutes, "Minutes of training with --mean")
      ->check(CLI::Range(0.001, 1e6));
  sub->add_option("--plans", command.plans,
                  "Forms of parallelism of four ranks to run, or all (default: the job as it is)");
  sub->add_option("--fail", command.fail,
                  "Failpoints to add, as in WEFT_FAIL: update.middle:rank=1:step=7");
  sub->add_option("--hosts", command.hosts,
                  "Spread the ranks over N network namespaces, which talk TCP (needs root)")
      ->check(CLI::Range(1, 16));
  sub->add_flag("--overlap", command.overlap,
                "Apply every second fault while the job recovers from the one before");
  sub->add_option("--weights", command.weights,
                  "equal: the last checkpoint must have the bytes of the undisturbed run. any: it "
                  "need not")
      ->check(CLI::IsMember({"equal", "any"}));
  sub->add_option("--limit", command.limit_s,
                  "Seconds after which a job is ended and its positions are printed. 0: from the "
                  "undisturbed run");
  sub->add_option("-o,--output", command.output, "Folder of report.json, report.html and the runs");
  sub->add_flag("--json", command.json, "Print the report as one JSON object on stdout");
  sub->formatter(std::make_shared<HelpFormatter>("-- train RECIPE [OPTIONS]"));
  sub->footer(
      std::string("The words after -- are the job: train, a recipe, and its options -n, --set,\n"
                  "--max-replacements, --min-ranks, --spares, --on-hang and --grace.\n\n") +
      kChaos.examples);
  sub->callback([&, run] {
    if (!beyond.empty()) command.job.assign(beyond.begin() + 1, beyond.end());
    result = run(command);
  });
}

ChaosJob parse_chaos_job(const std::vector<std::string>& words) {
  CLI::App app("", "train");
  app.set_help_flag();
  ChaosJob job;
  add_train_options(app, job.train);
  std::vector<std::string> last_first(words.rbegin(), words.rend());
  try {
    app.parse(last_first);
  } catch (const CLI::ParseError& error) {
    const std::string text = error.what();
    throw Error(Errc::kInvalidArgument, "weft train: " + text.substr(0, text.find('\n')));
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || is_one_of(kUnderstood, *option)) continue;
    const std::string name = "--" + option->get_single_name();
    if (!is_one_of(kPassedOn, *option)) {
      throw Error(Errc::kInvalidArgument,
                  "weft chaos does not pass on " + name +
                      "; its job takes a recipe, -n, --set, --max-replacements, --min-ranks, "
                      "--spares, --on-hang and --grace");
    }
    job.launching.push_back(name);
    job.launching.insert(job.launching.end(), option->results().begin(), option->results().end());
  }
  return job;
}

}  // namespace weft::cli
