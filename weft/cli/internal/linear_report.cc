#include "weft/cli/internal/linear_report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "weft/base/deadline.h"
#include "weft/base/json/json_writer.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/observe/progress.h"

namespace weft::cli {
namespace {

using Fields = std::vector<LogField>;

LogField raw(const std::string& name, const std::string& json) {
  LogField field(name, 0);
  field.json = json;
  return field;
}

// Fractions with four digits.
Fields for_people(Fields fields) {
  for (LogField& field : fields) {
    if (field.json.find_first_of(".e") == std::string::npos || field.json[0] == '"') continue;
    field.json = shortened(std::strtod(field.json.c_str(), nullptr));
  }
  return fields;
}

void add_certificate(const linear::Certificate& found, Fields& fields) {
  fields.emplace_back("relative_gap", found.relative_gap());
  fields.emplace_back("gap", found.gap());
  fields.emplace_back("primal", found.primal);
  fields.emplace_back("dual", found.dual);
}

Fields fields_of(const linear::Report& report) {
  Fields fields;
  if (report.outputs > 1) fields.emplace_back("problem", report.output + 1);
  if (report.epoch) {
    fields.emplace_back("epoch", report.epoch->epoch);
    fields.emplace_back("objective", report.epoch->objective);
    fields.emplace_back("seconds", report.epoch->seconds);
    fields.emplace_back("exchanged_bytes", report.epoch->exchanged_bytes);
    return fields;
  }
  const linear::Round& round = *report.round;
  fields.emplace_back("round", round.round);
  fields.emplace_back("passes", round.passes);
  if (round.certificate)
    add_certificate(*round.certificate, fields);
  else if (round.estimate > 0)
    fields.emplace_back("estimated_gap", round.estimate);
  fields.emplace_back("sigma", round.sigma);
  fields.emplace_back("gamma", round.gamma);
  fields.emplace_back("seconds", round.seconds);
  fields.emplace_back("exchanged_bytes", round.exchanged_bytes);
  return fields;
}

std::string outcomes_json(const linear::Trained& trained) {
  std::string text;
  JsonWriter json(text);
  json.begin_array();
  for (const linear::Outcome& outcome : trained.outcomes) {
    Fields fields;
    if (!trained.model.labels.empty()) fields.emplace_back("class", outcome.of_class);
    fields.emplace_back("objective", outcome.objective);
    fields.emplace_back("rounds", outcome.rounds);
    if (outcome.certificate) {
      add_certificate(*outcome.certificate, fields);
      fields.emplace_back("converged", outcome.converged);
    }
    json.raw(json_of(fields));
  }
  json.end_array();
  return text;
}

// 0 without a certificate.
double gap_of(const linear::Outcome& outcome) {
  return outcome.certificate ? outcome.certificate->relative_gap() : 0;
}

}  // namespace

void LinearReport::check(const LinearCommand& command) {
  observe::parse_progress_mode(command.progress);
}

LinearReport::LinearReport(const LinearCommand& command, int rank)
    : command_(command), rank_(rank), mode_(observe::parse_progress_mode(command.progress)) {}

LinearReport::Data LinearReport::loaded(const linear::SparseRows& rows, const Group& world,
                                        std::chrono::steady_clock::time_point start) {
  at::Tensor sums = at::tensor(
      {static_cast<double>(rows.size()), static_cast<double>(rows.entries.size())}, at::kDouble);
  at::Tensor most = at::tensor({static_cast<double>(linear::count_columns(rows))}, at::kDouble);
  world.all_reduce(sums);
  world.all_reduce(most, ReduceOp::kMax);
  data_ = {sums[0].item<double>(), sums[1].item<double>(), most.item<double>()};
  read_seconds_ = seconds_since(start);
  ranks_ = world.size();
  if (rank_ == 0 && mode_ != observe::ProgressMode::kNone) {
    log_info("read " + command_.file,
             for_people({{"rows", static_cast<std::int64_t>(data_.rows)},
                         {"columns", static_cast<std::int64_t>(data_.columns)},
                         {"entries", static_cast<std::int64_t>(data_.entries)},
                         {"seconds", read_seconds_}}));
  }
  return data_;
}

void LinearReport::progress(const linear::Report& report) {
  if (rank_ != 0 || mode_ == observe::ProgressMode::kNone) return;
  if (mode_ == observe::ProgressMode::kJson) {
    std::cerr << json_of(fields_of(report)) + "\n";
    return;
  }
  const bool first = last_line_ == std::chrono::steady_clock::time_point{};
  if (!first && seconds_since(last_line_) < 1) return;
  last_line_ = std::chrono::steady_clock::now();
  log_info(report.epoch ? "epoch" : "round", for_people(fields_of(report)));
}

void LinearReport::done(const linear::Trained& trained, const linear::TrainOptions& options,
                        const std::string& model_file) {
  std::size_t missed = 0;
  for (const linear::Outcome& outcome : trained.outcomes)
    missed += outcome.certificate && !outcome.converged ? 1 : 0;
  if (missed > 0) {
    log_warn("the gap was not reached within --max-passes; the model is that of the last pass",
             {{"problems", missed}, {"max_passes", command_.max_passes}});
  }
  if (mode_ != observe::ProgressMode::kNone) {
    const auto worst = std::ranges::max_element(trained.outcomes, {}, gap_of);
    Fields fields;
    if (trained.outcomes.size() > 1) {
      fields.emplace_back("problems", trained.outcomes.size());
      fields.emplace_back("problem", worst - trained.outcomes.begin() + 1);
    }
    fields.emplace_back("objective", worst->objective);
    fields.emplace_back("rounds", worst->rounds);
    if (worst->certificate) fields.emplace_back("relative_gap", gap_of(*worst));
    fields.emplace_back("seconds", trained.seconds);
    fields.emplace_back("exchanged", format_bytes(trained.exchanged_bytes));
    fields.emplace_back("model", model_file.empty() ? "none" : model_file);
    log_info("done", for_people(fields));
  }
  if (!command_.json) return;
  std::cout << json_of({{"rows", static_cast<std::int64_t>(data_.rows)},
                        {"columns", static_cast<std::int64_t>(data_.columns)},
                        {"entries", static_cast<std::int64_t>(data_.entries)},
                        {"loss", command_.loss},
                        {"l2", options.objective.l2},
                        {"l1", options.objective.l1},
                        {"rule", command_.rule},
                        {"ranks", ranks_},
                        {"read_seconds", read_seconds_},
                        {"seconds", trained.seconds},
                        {"exchanged_bytes", trained.exchanged_bytes},
                        raw("outcomes", outcomes_json(trained)),
                        {"model", model_file}})
            << std::endl;
}

void report_quality(const LinearCommand& command, const linear::Model& model,
                    const linear::Quality& quality) {
  Fields fields{{"rows", quality.rows}};
  if (model.labels.empty()) {
    fields.emplace_back("mean_squared_error", quality.mean_squared_error());
    fields.emplace_back("squared_correlation", quality.squared_correlation());
  } else {
    fields.emplace_back("accuracy", quality.accuracy());
    fields.emplace_back("correct", quality.correct);
  }
  if (command.json)
    std::cout << json_of(fields) << std::endl;
  else
    log_info("predicted", for_people(fields));
}

}  // namespace weft::cli
