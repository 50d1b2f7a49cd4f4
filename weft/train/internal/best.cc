#include "weft/train/internal/best.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/train/internal/learner.h"

namespace weft::train::internal {
namespace {

constexpr std::size_t kMaxMarkBytes = 1 << 16;

// True if a word of the name, in lower case, is an abbreviation of an error or a perplexity.
bool has_abbreviation(const std::string& name) {
  static const std::set<std::string> kKnown{"mse", "rmse", "mae", "mape", "nll",
                                            "ppl", "wer",  "cer", "bpc",  "bpb"};
  std::string word;
  for (const char c : name + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      word += c;
    else if (kKnown.contains(std::exchange(word, {})))
      return true;
  }
  return false;
}

// Without a direction that was asked for, a name decides.
bool is_smaller_better(const Options& options) {
  if (options.best_is != Better::kAuto) return options.best_is == Better::kMin;
  std::string name = options.best_metric;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  return has("loss") || has("error") || has("perplexity") || has("bits") || has_abbreviation(name);
}

}  // namespace

void Best::check(const Options& options, const std::vector<std::string>& metrics,
                 bool has_test_data) {
  if (!is_on(options)) return;
  const std::string key = options.patience > 0 ? "train.patience" : "train.keep_best";
  if (!has_test_data)
    throw Error(Errc::kBadConfig, key + " compares evaluations, but the task has no test data");
  if (options.patience > 0 && options.eval_every == 0 && options.eval_steps == 0) {
    throw Error(Errc::kBadConfig,
                "train.patience counts evaluations, but there is none before the end of training; "
                "set train.eval_every or train.eval_steps");
  }
  if (options.best_metric == "loss" || std::ranges::count(metrics, options.best_metric) > 0) return;
  std::string known = "loss";
  for (const std::string& name : metrics) known += name == "loss" ? "" : ", " + name;
  throw Error(Errc::kBadConfig, "train.best_metric = \"" + options.best_metric +
                                    "\" is no metric of this task; it has " + known);
}

Best::Best(const Options& options)
    : metric_(options.best_metric),
      smaller_(is_smaller_better(options)),
      least_(options.min_improvement),
      patience_(options.patience) {}

bool Best::add(const Evaluation& evaluation, std::int64_t step) {
  const double value = metric_ == "loss" ? evaluation.loss : evaluation.metric(metric_);
  const double gain = smaller_ ? state_.value - value : value - state_.value;
  const bool is_better = std::isfinite(value) && (state_.step < 0 || (gain > 0 && gain >= least_));
  if (is_better) {
    state_ = {step, value, 0};
  } else {
    ++state_.since;
  }
  return is_better;
}

Best::State Best::state() const {
  State state = state_;
  state.metric = metric_;
  state.is = smaller_ ? "min" : "max";
  return state;
}

bool Best::restore(const State& state) {
  const State mine = this->state();
  const bool is_same = state.metric.empty() || (state.metric == mine.metric && state.is == mine.is);
  state_ = is_same ? state : State{};
  return is_same;
}

void write_best(const std::string& run, const BestMark& mark, const std::string& checkpoint) {
  const nlohmann::ordered_json json{
      {"step", mark.step},
      {"metric", mark.metric},
      {"value", mark.value},
      {"checkpoint", "ckpt/" + std::filesystem::path(checkpoint).filename().string()}};
  try {
    write_file_atomic(run + "/best.json", json.dump() + "\n");
  } catch (const Error& error) {
    log_warn(error.message() + "; the best checkpoint is " + checkpoint);
  }
}

namespace {

// The object in best.json: null without such a file, empty if the file holds no object.
nlohmann::json read_mark(const std::string& run) {
  const std::string file = run + "/best.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return nullptr;
  auto json = nlohmann::json::parse(read_file(file, kMaxMarkBytes), nullptr, false);
  return json.is_object() ? json : nlohmann::json::object();
}

}  // namespace

std::int64_t named_best(const std::string& run) {
  try {
    const auto json = read_mark(run);
    const bool is_good = json.contains("step") && json["step"].is_number_integer();
    return is_good ? json["step"].get<std::int64_t>() : -1;
  } catch (const Error& error) {
    log_warn(error.message() + "; the best checkpoint so far is not known");
    return -1;
  }
}

std::string best_checkpoint(const std::string& run) {
  const auto json = read_mark(run);
  WEFT_REQUIRE(!json.is_null(),
               run + " has no best checkpoint; train it with train.keep_best = true");
  const bool is_good = json.contains("checkpoint") && json["checkpoint"].is_string();
  if (!is_good)
    throw Error(Errc::kCorrupt, run + "/best.json: expected an object with \"checkpoint\"");
  return run + "/" + json["checkpoint"].get<std::string>();
}

}  // namespace weft::train::internal
