// `weft linear`: trains linear models on LIBSVM files over ranks, and predicts with them.
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/linear_report.h"
#include "weft/cli/internal/output_file.h"
#include "weft/cli/internal/start_ranks.h"
#include "weft/comm/environment.h"
#include "weft/comm/init.h"
#include "weft/linear/data/text_file.h"
#include "weft/linear/linear.h"
#include "weft/linear/model/predict.h"

namespace weft::cli {
namespace {

using linear::TrainOptions;

linear::LibsvmOptions reading(const LinearCommand& command, double bias) {
  linear::LibsvmOptions options;
  options.zero_based = command.zero_based;
  options.max_index = command.max_index;
  options.bias = bias;
  return options;
}

// Fills `sigma`, or `fixed_sigma` if it is a number.
void set_sigma(const std::string& word, linear::CocoaOptions& options) {
  const auto number = linear::parse_number(word);
  WEFT_REQUIRE(word == "measured" || word == "safe" || (number && *number > 0),
               "--sigma " + word + ": it must be measured, safe or a number above 0");
  options.sigma = word == "safe" ? linear::Sigma::kSafe : linear::Sigma::kMeasured;
  if (number) options.fixed_sigma = *number;
}

// LIBLINEAR's C, which needs the number of rows to become an l2. None: the l2 is known.
std::optional<double> c_of(const LinearCommand& command) {
  if (command.c || command.l2 || command.l1 > 0) return command.c;
  return 1;
}

// All but an l2 that c_of() gives.
TrainOptions training(const LinearCommand& command) {
  TrainOptions options;
  WEFT_REQUIRE(!command.l2 || !command.c, "give --l2 or -C, not both");
  WEFT_REQUIRE(!command.c || (*command.c > 0 && std::isfinite(*command.c)),
               "-C must be a finite number above 0");
  options.objective.loss = linear::parse_loss(command.loss);
  options.objective.l1 = command.l1;
  options.objective.l2 = command.l2.value_or(c_of(command) ? 1 : 0);
  options.rule = linear::parse_rule(command.rule);
  options.division = linear::parse_division(command.division);
  set_sigma(command.sigma, options.cocoa);
  options.cocoa.local_passes = command.local_passes;
  options.cocoa.stop = {command.gap, command.absolute_gap, command.max_passes};
  options.cocoa.seed = options.hogwild.seed = command.seed;
  options.hogwild.threads = command.threads;
  options.hogwild.locks = linear::parse_locks(command.locks);
  options.hogwild.cluster_size = command.cluster_size;
  options.hogwild.exchange_rows = command.exchange_rows;
  options.hogwild.epochs = command.epochs;
  options.hogwild.step = command.step;
  options.hogwild.decay = command.decay;
  options.bias = command.bias;
  options.max_classes = command.max_classes;
  linear::check(options);
  return options;
}

std::string model_file(const LinearCommand& command) {
  if (command.model == "none") return "";
  if (!command.model.empty()) return command.model;
  return std::filesystem::path(command.file).filename().string() + ".model";
}

// Finds a wrong path before the training, not after it. `data`: the file to train on.
void check_model_file(const std::string& file, const std::string& data) {
  if (file.empty()) return;
  check_output("--model", file, {data});
  WEFT_REQUIRE(!std::filesystem::exists(file) || std::filesystem::is_regular_file(file),
               "--model " + file + " is no regular file; \"none\" writes no model");
}

// Runs one rank, from the rendezvous to its exit code.
int train_rank(const LinearCommand& command, TrainOptions options) {
  const auto world = comm::init();
  const auto start = std::chrono::steady_clock::now();
  auto rows = linear::load(command.file, world, reading(command, command.bias));
  LinearReport report(command, world.rank());
  const auto data = report.loaded(rows, world, start);
  if (const auto c = c_of(command)) options.objective.l2 = 1 / (*c * data.rows);
  options.on_report = [&](const linear::Report& what) { report.progress(what); };
  const auto trained = linear::train(world, std::move(rows), options);
  if (world.rank() != 0) return 0;
  const std::string file = model_file(command);
  if (!file.empty()) linear::write_model(trained.model, file);
  report.done(trained, options, file);
  return 0;
}

// Predictions in the form of liblinear-predict, with all digits.
std::string text_of(const linear::Model& model, const linear::Predictions& made) {
  std::string text;
  const std::size_t classes = made.probabilities.empty() ? 0 : model.labels.size();
  if (classes > 0) {
    text = "labels";
    for (const int label : model.labels) text += " " + std::to_string(label);
    text += "\n";
  }
  for (std::size_t i = 0; i < made.labels.size(); ++i) {
    text += json_number(made.labels[i]);
    for (std::size_t c = 0; c < classes; ++c)
      text += " " + json_number(made.probabilities[i * classes + c]);
    text += "\n";
  }
  return text;
}

void print(const std::string& text) {
  errno = 0;
  if (std::cout << text << std::flush) return;
  throw Error(Errc::kUnavailable,
              std::string("cannot write the predictions to stdout: ") + std::strerror(errno));
}

void warn_of_unknown(const LinearCommand& command, const linear::Model& model,
                     const linear::Predictions& made) {
  if (made.unknown_entries == 0) return;
  log_warn(command.file + " has features that the model does not have; they are ignored",
           {{"entries", made.unknown_entries}, {"features_of_model", model.features}});
}

}  // namespace

int linear_train(const LinearCommand& command) {
  const TrainOptions options = training(command);  // mistakes are found before ranks start
  LinearReport::check(command);
  if (comm::discover(comm::Environment::process()).rank == 0)
    check_model_file(model_file(command), command.file);
  return start_ranks(command.ranks, [&] { return train_rank(command, options); });
}

int linear_predict(const LinearCommand& command) {
  if (!command.output.empty())
    check_output("--output", command.output, {command.model, command.file});
  const auto model = linear::read_model(command.model);
  const auto rows = linear::read_libsvm(command.file, reading(command, model.bias));
  if (rows.size() == 0) throw Error(Errc::kCorrupt, command.file + " has no rows");
  const auto made = linear::predict(model, rows, command.probabilities);
  const std::string text = text_of(model, made);
  if (!command.output.empty())
    write_file_atomic(command.output, text);
  else if (!command.json)
    print(text);
  warn_of_unknown(command, model, made);
  report_quality(command, model, linear::compare(made, rows.labels));
  return 0;
}

}  // namespace weft::cli
