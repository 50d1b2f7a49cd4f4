#include "weft/linear/model/model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/linear/model/internal/model_words.h"

namespace weft::linear {
namespace {

struct Solver {
  std::string_view name;
  bool classifier = true;
};
constexpr std::string_view kOneClass = "ONECLASS_SVM";
constexpr std::array<Solver, 12> kSolvers{{{"L2R_LR"},
                                           {"L2R_L2LOSS_SVC_DUAL"},
                                           {"L2R_L2LOSS_SVC"},
                                           {"L2R_L1LOSS_SVC_DUAL"},
                                           {"MCSVM_CS"},
                                           {"L1R_L2LOSS_SVC"},
                                           {"L1R_LR"},
                                           {"L2R_LR_DUAL"},
                                           {"L2R_L2LOSS_SVR", false},
                                           {"L2R_L2LOSS_SVR_DUAL", false},
                                           {"L2R_L1LOSS_SVR_DUAL", false},
                                           {kOneClass, false}}};

const Solver* find_solver(std::string_view name) {
  const auto found = std::find_if(kSolvers.begin(), kSolvers.end(),
                                  [&](const Solver& solver) { return solver.name == name; });
  return found == kSolvers.end() ? nullptr : &*found;
}

void append(std::string& text, double value) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// Reads the keys up to "w".
std::uint64_t read_header(internal::ModelWords& words, Model& model) {
  constexpr std::uint64_t kMaxClasses = 1u << 30;
  std::uint64_t classes = 0;
  bool knows_features = false;
  model.solver.clear();
  for (std::string key = words.text(); key != "w"; key = words.text()) {
    if (key == "solver_type") {
      model.solver = words.text();
      if (find_solver(model.solver) == nullptr) words.fail("solver type", model.solver);
    } else if (key == "nr_class") {
      classes = words.whole(kMaxClasses);
    } else if (key == "label") {
      for (std::uint64_t i = 0; i < classes; ++i) model.labels.push_back(words.integer());
    } else if (key == "nr_feature") {
      model.features = static_cast<std::uint32_t>(words.whole(kBiasColumn - 1));
      knows_features = true;
    } else if (key == "bias") {
      model.bias = words.number();
      if (model.bias > std::numeric_limits<float>::max())
        words.fail("the bias does not fit into float32");
    } else if (key == "rho") {
      model.rho = words.number();
    } else {
      words.fail("key", key);
    }
  }
  if (model.solver.empty()) words.fail("there is no solver_type before the weights");
  if (!knows_features) words.fail("there is no nr_feature before the weights");
  if (find_solver(model.solver)->classifier && (classes < 1 || model.labels.size() != classes))
    words.fail("there are no labels of the classes before the weights");
  if (!find_solver(model.solver)->classifier) model.labels.clear();
  if (model.solver == kOneClass)
    model.labels = {1, -1};
  else
    model.rho = 0;
  return std::uint64_t{model.features} + (model.bias >= 0 ? 1 : 0);
}

}  // namespace

std::size_t Model::outputs() const {
  return labels.size() <= 2 && solver != "MCSVM_CS" ? 1 : labels.size();
}

bool Model::has_probabilities() const {
  return solver == "L2R_LR" || solver == "L2R_LR_DUAL" || solver == "L1R_LR";
}

std::string solver_name(const Objective& objective) {
  const bool sparse = objective.l2 == 0;
  switch (objective.loss) {
    case Loss::kLogistic: return sparse ? "L1R_LR" : "L2R_LR";
    case Loss::kHinge: return "L2R_L1LOSS_SVC_DUAL";
    case Loss::kSquaredHinge: return sparse ? "L1R_L2LOSS_SVC" : "L2R_L2LOSS_SVC";
    case Loss::kSquared: break;
  }
  return "L2R_L2LOSS_SVR";
}

void write_model(const Model& model, const std::string& path) {
  const bool one_class = model.solver == kOneClass;
  const bool classifies = !model.labels.empty() && !one_class;
  std::string text = "solver_type " + model.solver + "\nnr_class " +
                     std::to_string(classifies ? model.labels.size() : 2) + "\n";
  if (classifies) {
    text += "label";
    for (const int label : model.labels) text += ' ' + std::to_string(label);
    text += '\n';
  }
  text += "nr_feature " + std::to_string(model.features) + "\nbias ";
  append(text, model.bias);
  if (one_class) append(text += "\nrho ", model.rho);
  text += "\nw\n";
  const auto add_row = [&](std::uint32_t id) {
    for (std::size_t output = 0; output < model.outputs(); ++output) {
      append(text, id == ColumnMap::kNone ? 0 : model.weights[id * model.outputs() + output]);
      text += output + 1 == model.outputs() ? '\n' : ' ';
    }
  };
  for (std::uint32_t column = 0; column < model.features; ++column)
    add_row(model.columns.find(column));
  if (model.bias >= 0) add_row(model.columns.find(kBiasColumn));
  write_file_atomic(path, text);
}

Model read_model(const std::string& path) {
  internal::ModelWords words(path);
  Model model;
  const std::uint64_t rows = read_header(words, model);
  const std::uint64_t count = rows * model.outputs();
  for (std::uint64_t i = 0; i < count; ++i) {
    if (words.at_end()) {
      words.fail("the file ends after " + std::to_string(i) + " of " + std::to_string(count) +
                 " weights");
    }
    model.weights.push_back(words.number());
  }
  if (!words.at_end()) words.fail("there is more after the " + std::to_string(count) + " weights");
  model.columns = ColumnMap::dense(model.features);
  if (model.bias >= 0) model.columns.add_bias();
  return model;
}

}  // namespace weft::linear
