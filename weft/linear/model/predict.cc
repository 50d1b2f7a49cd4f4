#include "weft/linear/model/predict.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::linear {
namespace {

// Without it, scores would lack the weight of the constant feature.
void require_bias(const Model& model, const SparseRows& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    const bool has_bias = !row.empty() && row.back().column == kBiasColumn;
    WEFT_REQUIRE(model.bias >= 0 || !has_bias,
                 "row " + std::to_string(i) +
                     " has a bias, and the model has none; read the rows without "
                     "LibsvmOptions::bias");
    WEFT_REQUIRE(model.bias < 0 || (has_bias && row.back().value == static_cast<float>(model.bias)),
                 "row " + std::to_string(i) + " does not have the model's bias of " +
                     json_number(model.bias) + "; read the rows with LibsvmOptions::bias");
  }
}

// Scores of one row, by output.
void score(const Model& model, std::span<const Entry> row, std::vector<double>& scores) {
  std::fill(scores.begin(), scores.end(), -model.rho);
  for (const Entry& entry : row) {
    const std::uint32_t id = model.columns.find(entry.column);
    if (id == ColumnMap::kNone) continue;
    const double* const weights = model.weights.data() + id * scores.size();
    for (std::size_t output = 0; output < scores.size(); ++output)
      scores[output] += entry.value * weights[output];
  }
}

double decide(const Model& model, const std::vector<double>& scores) {
  if (model.labels.empty()) return scores[0];
  std::size_t best = 0;
  if (scores.size() == 1)
    best = scores[0] > 0 ? 0 : 1;
  else
    best =
        static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  return model.labels[std::min(best, model.labels.size() - 1)];
}

void add_probabilities(const Model& model, const std::vector<double>& scores,
                       std::vector<double>& to) {
  const auto sigmoid = [](double s) { return 1 / (1 + std::exp(-s)); };
  if (scores.size() == 1) {
    to.push_back(model.labels.size() == 1 ? 1 : sigmoid(scores[0]));
    if (model.labels.size() == 2) to.push_back(1 - to.back());
    return;
  }
  double sum = 0;
  for (const double s : scores) sum += sigmoid(s);
  for (const double s : scores) to.push_back(sigmoid(s) / sum);
}

std::uint64_t count_unknown(const Model& model, const SparseRows& rows) {
  std::uint64_t count = 0;
  for (const Entry& entry : rows.entries)
    count += entry.column >= model.features && entry.column != kBiasColumn ? 1 : 0;
  return count;
}

}  // namespace

Predictions predict(const Model& model, const SparseRows& rows, bool probabilities) {
  WEFT_REQUIRE(!probabilities || model.has_probabilities(),
               "a model of " + model.solver + " has no probabilities; a logistic one has");
  WEFT_REQUIRE(model.weights.size() == model.columns.size() * model.outputs(),
               "a model with another number of weights than its columns need");
  require_bias(model, rows);
  Predictions predictions;
  predictions.unknown_entries = count_unknown(model, rows);
  std::vector<double> scores(model.outputs());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    score(model, rows.row(i), scores);
    predictions.labels.push_back(decide(model, scores));
    if (probabilities) add_probabilities(model, scores, predictions.probabilities);
  }
  return predictions;
}

double Quality::accuracy() const {
  return static_cast<double>(correct) / static_cast<double>(rows);
}

double Quality::mean_squared_error() const { return squared_errors / static_cast<double>(rows); }

double Quality::squared_correlation() const { return py * py / (pp * yy); }

void Quality::add(const Quality& other) {
  if (other.rows == 0) return;
  const auto mine = static_cast<double>(rows), theirs = static_cast<double>(other.rows);
  const double p = other.mean_p - mean_p, y = other.mean_y - mean_y;
  const double share = theirs / (mine + theirs), weight = mine * share;
  rows += other.rows;
  correct += other.correct;
  squared_errors += other.squared_errors;
  mean_p += share * p;
  mean_y += share * y;
  pp += other.pp + weight * p * p;
  yy += other.yy + weight * y * y;
  py += other.py + weight * p * y;
}

Quality compare(const Predictions& predictions, std::span<const double> labels) {
  WEFT_REQUIRE(predictions.labels.size() == labels.size(), "one prediction for each label");
  Quality quality;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double p = predictions.labels[i], y = labels[i];
    quality.add({.rows = 1,
                 .correct = p == y ? 1U : 0U,
                 .squared_errors = (p - y) * (p - y),
                 .mean_p = p,
                 .mean_y = y});
  }
  return quality;
}

}  // namespace weft::linear
