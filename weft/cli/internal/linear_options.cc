// The command line of `weft linear`.
#include "weft/base/error.h"
#include "weft/cli/internal/descriptions.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

void add_data(CLI::App& sub, LinearCommand& command) {
  sub.add_flag("--zero-based", command.zero_based, "The file's indices count from 0, not from 1");
  sub.add_option("--max-index", command.max_index,
                 "Largest accepted feature index; a larger one is an error");
}

void add_objective(CLI::App& sub, LinearCommand& command) {
  sub.add_option("--loss", command.loss, "logistic, hinge, squared-hinge or squared");
  sub.add_option("--l2", command.l2,
                 "Weight of |w|^2 / 2 beside the mean loss (default: -C 1; 0 if --l1 is given)")
      ->type_name("FLOAT");
  sub.add_option("-C", command.c, "Instead of --l2: 1 / (C rows), LIBLINEAR's parameter")
      ->type_name("FLOAT");
  sub.add_option("--l1", command.l1, "Weight of the sum of |w|: with l2 0, a sparse model");
  sub.add_option("--bias", command.bias,
                 "Append a constant feature of this value to each row. Below 0: none");
  sub.add_option("--max-classes", command.max_classes,
                 "Most classes; each class of several needs a training of its own");
}

void add_cocoa(CLI::App& sub, LinearCommand& command) {
  sub.add_option("--gap", command.gap, "Stop at this duality gap, relative to the objective");
  sub.add_option("--absolute-gap", command.absolute_gap, "Stop at this duality gap. 0: do not");
  sub.add_option("--max-passes", command.max_passes, "Most passes over the data");
  sub.add_option("--local-passes", command.local_passes,
                 "Passes of a rank over its data in a round; below 1: that part of a pass. "
                 "0: chosen by the size of the messages");
  sub.add_option("--sigma", command.sigma,
                 "Scale of the ranks' subproblems (cocoa+): measured in each round, safe (the "
                 "number of ranks), or a number");
  sub.add_option("--division", command.division,
                 "How CoCoA divides the data: rows, columns or auto (columns for --l1)");
}

void add_hogwild(CLI::App& sub, LinearCommand& command) {
  sub.add_option("--threads", command.threads, "Threads of each rank (hogwild)");
  sub.add_option("--epochs", command.epochs, "Passes over the data (hogwild)");
  sub.add_option("--step", command.step,
                 "Step of the first epoch, as a multiple of 1 / mean |x|^2 (hogwild)");
  sub.add_option("--decay", command.decay, "Factor of the step after each epoch (hogwild)");
  sub.add_option("--cluster-size", command.cluster_size,
                 "Threads that share one copy of the weights; 0: all of a host (hogwild)");
  sub.add_option("--exchange-rows", command.exchange_rows,
                 "Rows between exchanges of clusters; 0: chosen by their cost (hogwild)");
  sub.add_option("--locks", command.locks, "none, rows or columns (hogwild)");
}

// Options of another rule would change nothing.
void refuse_misfits(const CLI::App& train, const std::string& rule) {
  const auto refuse = [&](const std::vector<const char*>& options, const char* of) {
    for (const char* option : options) {
      if (train.count(option) > 0)
        throw Error(Errc::kInvalidArgument, std::string(option) + " is for --rule " + of +
                                                ", and the rule is " + rule + "; leave it out");
    }
  };
  if (rule == "hogwild") {
    refuse({"--gap", "--absolute-gap", "--max-passes", "--local-passes", "--sigma", "--division"},
           "cocoa+ and cocoa");
  } else {
    refuse({"--threads", "--epochs", "--step", "--decay", "--cluster-size", "--exchange-rows",
            "--locks"},
           "hogwild");
  }
  if (rule == "cocoa") refuse({"--sigma"}, "cocoa+");
}

}  // namespace

void add_linear(CLI::App& app, LinearCommand& command, const OwnFunctions& own, int& result) {
  auto* sub = add(app, kLinear);
  sub->require_subcommand(1);
  auto* train = sub->add_subcommand(
      "train", "Train on a LIBSVM file; every rank reads its part. Prints the gap of each round");
  train->add_option("file", command.file, "LIBSVM file, plain or gzip")->required();
  train->add_option("-m,--model", command.model,
                    "Model file to write, in LIBLINEAR's format. none: do not write one "
                    "(default: the file's name with .model, in the current folder)");
  train
      ->add_option("-n,--ranks", command.ranks,
                   "Ranks (processes) to start on this machine. Under a launcher it must equal the "
                   "launcher's number")
      ->check(CLI::Range(1, 256));
  train->add_option("--rule", command.rule, "How ranks work together: cocoa+, cocoa or hogwild");
  add_objective(*train, command);
  add_cocoa(*train, command);
  add_hogwild(*train, command);
  add_data(*train, command);
  train->add_option("--seed", command.seed, "Seed of the order of the rows");
  train->add_option("--progress", command.progress,
                    "How progress is shown: auto, lines, json or none");
  train->add_flag("--json", command.json, "Print the result as one JSON object on stdout");
  train->footer(kLinear.examples);
  train->callback([&, train, run = own.linear_train] {
    refuse_misfits(*train, command.rule);
    result = run(command);
  });
  auto* predict = sub->add_subcommand(
      "predict", "Predict the rows of a LIBSVM file, and compare with their labels");
  predict->add_option("model", command.model, "Model file of weft or LIBLINEAR")->required();
  predict->add_option("file", command.file, "LIBSVM file, plain or gzip")->required();
  predict->add_option("-o,--output", command.output,
                      "File for the predictions, one row a line (default: stdout)");
  predict->add_flag("--probabilities", command.probabilities,
                    "Also the probability of each class (logistic models)");
  add_data(*predict, command);
  predict->add_flag("--json", command.json,
                    "Print accuracy or errors as one JSON object on stdout; predictions only go "
                    "to --output");
  predict->footer(kLinear.examples);
  predict->callback([&, run = own.linear_predict] { result = run(command); });
}

}  // namespace weft::cli
