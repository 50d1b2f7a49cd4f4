#include "weft/train/recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/comm/init.h"
#include "weft/compress/spec.h"
#include "weft/data/image_set.h"
#include "weft/models/registry.h"
#include "weft/observe/run/run_folder.h"
#include "weft/train/internal/newest_run.h"
#include "weft/train/internal/optimizer_options.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/pretrained.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

// The folder and those above it.
std::vector<fs::path> with_parents(fs::path at) {
  std::vector<fs::path> all;
  for (; !at.empty(); at = at.parent_path()) {
    all.push_back(at);
    if (at == at.root_path()) break;
  }
  return all;
}

// Search order: recipes/ in the current folder and its parents (so that names also work from
// build/), then those of the checkout in which this program was built, then those installed with
// it.
std::vector<fs::path> recipe_folders() {
  std::error_code ignored;
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (fs::is_directory(folder, ignored) && std::ranges::find(folders, folder) == folders.end())
      folders.push_back(folder);
  };
  for (const fs::path& at : with_parents(fs::current_path(ignored))) add(at / "recipes");
  const fs::path bin = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& at : with_parents(bin)) {
    if (fs::exists(at / "weft/weft.h", ignored)) add(at / "recipes");
  }
  add(bin.parent_path() / "share/weft/recipes");
  return folders;
}

std::vector<std::string> recipes_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::is_regular_file(entry.path() / "recipe.toml", ignored))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_unknown(const std::string& recipe, const std::vector<fs::path>& folders) {
  std::error_code ignored;
  if (fs::is_directory(recipe, ignored))
    throw Error(Errc::kBadConfig, "the folder " + recipe + " has no recipe.toml");
  std::string name = fs::path(recipe).filename().string();
  if (name.empty()) name = fs::path(recipe).parent_path().filename().string();
  std::set<std::string> names;
  std::vector<std::string> searched;
  for (const auto& folder : folders) {
    searched.push_back(folder.string());
    for (const auto& one : recipes_in(folder)) names.insert(one);
  }
  const std::vector<std::string> known(names.begin(), names.end());
  const auto near = nearest(name, known);
  const std::string where =
      searched.empty() ? "there is no folder recipes/ here or above, beside this program's "
                         "sources, or in its share/weft"
                       : "searched " + joined(searched, ", ");
  std::string hint;
  if (near) hint = "; did you mean \"" + *near + "\"?";
  if (!near && !known.empty()) hint = "; there are: " + joined(known, ", ");
  throw Error(Errc::kBadConfig, "no recipe \"" + recipe +
                                    "\": neither a folder with a recipe.toml nor a known name; " +
                                    where + hint);
}

// A key that applies only to some models, data sets, optimizers or schedules. `chosen_by` is the
// key that selects them, and `of` lists the values that use `key`.
struct Use {
  const char* key;
  const char* chosen_by;
  std::vector<std::string> of;
};

const std::vector<Use>& uses() {
  static const std::vector<std::string> workers(strategy::names().begin() + 1,
                                                strategy::names().end());
  static const std::vector<std::string> resnets = {"resnet18", "resnet34", "resnet50", "resnet101",
                                                   "resnet152"};
  static const std::vector<std::string> images = {"fashion-mnist", "shapes"};
  static const std::vector<Use> all = {
      {"model.from", "model.name", {"gpt"}},
      {"model.family", "model.name", {"gpt"}},
      {"model.layers", "model.name", {"gpt", "lstm", "vit", "mixer"}},
      {"model.width", "model.name", {"gpt", "lstm", "vit", "mixer"}},
      {"model.heads", "model.name", {"gpt", "vit"}},
      {"model.kv_heads", "model.name", {"gpt"}},
      {"model.sequence", "model.name", {"gpt", "lstm"}},
      {"model.experts", "model.name", {"gpt"}},
      {"model.experts_top_k", "model.name", {"gpt"}},
      {"model.experts_capacity", "model.name", {"gpt"}},
      {"model.experts_balance", "model.name", {"gpt"}},
      {"model.tied", "model.name", {"lstm"}},
      {"model.dropout", "model.name", {"gpt", "lstm", "vit"}},
      {"model.hidden", "model.name", {"mlp"}},
      {"model.stem", "model.name", resnets},
      {"model.patch", "model.name", {"vit", "mixer"}},
      {"model.pool", "model.name", {"vit"}},
      {"model.sync_batch_norm", "model.name", resnets},
      {"data.file", "data.name", {"text"}},
      {"data.tokenizer", "data.name", {"text"}},
      {"data.validation", "data.name", {"text"}},
      {"data.pack_documents", "model.name", {"gpt"}},
      {"data.dir", "data.name", {"fashion-mnist"}},
      {"data.seed", "data.name", {"shapes"}},
      {"data.crop_padding", "data.name", images},
      {"data.flip", "data.name", images},
      {"train.loss", "data.name", images},
      {"train.label_smoothing", "data.name", images},
      {"optimizer.momentum", "optimizer.name", {"sgd", "rmsprop", "lars", "muon"}},
      {"optimizer.nesterov", "optimizer.name", {"sgd", "lars"}},
      {"optimizer.trust", "optimizer.name", {"lars"}},
      {"optimizer.update_clip", "optimizer.name", {"adafactor"}},
      {"optimizer.adam_lr", "optimizer.name", {"muon"}},
      {"optimizer.l1", "optimizer.name", {"sgd", "rmsprop", "adagrad", "adam", "adamw", "lion"}},
      {"optimizer.alpha", "optimizer.name", {"rmsprop"}},
      {"optimizer.betas", "optimizer.name", {"adam", "adamw", "lion", "lamb", "muon"}},
      {"optimizer.eps", "optimizer.name", {"rmsprop", "adagrad", "adam", "adamw", "lamb", "muon"}},
      {"train.max_batch", "train.batch_schedule", {"noise"}},
      {"strategy.period", "strategy.name", workers},
      {"strategy.sync_steps", "strategy.name", workers},
      {"strategy.adapt_steps", "strategy.name", workers},
      {"strategy.lr", "strategy.name", {"slow_momentum", "diloco", "downpour", "gossip"}},
      {"strategy.momentum", "strategy.name", {"slow_momentum", "diloco"}},
      {"strategy.fragments", "strategy.name", {"diloco"}},
      {"strategy.beta", "strategy.name", {"easgd", "easgd_async"}},
      {"strategy.graph", "strategy.name", {"gossip", "ad_psgd"}},
      {"strategy.staleness", "strategy.name", {"downpour", "easgd_async"}},
      {"strategy.delay_compensation", "strategy.name", {"downpour"}},
      {"strategy.backup", "strategy.name", {"sync"}},
      {"strategy.codec", "strategy.name", workers},
      {"schedule.gamma", "schedule.name", {"step"}},
      {"schedule.minimum", "schedule.name", {"cosine"}},
      {"schedule.period_epochs", "schedule.name", {"step", "cosine"}},
      {"parallel.tp", "model.name", {"gpt", "vit", "mixer"}},
      {"parallel.cp", "model.name", {"gpt"}},
      {"parallel.context", "model.name", {"gpt"}},
      {"parallel.ep", "model.name", {"gpt"}},
  };
  return all;
}

std::string any_of(const std::vector<std::string>& names) {
  return "\"" + joined(names, "\" or \"") + "\"";
}

// Unknown models are rejected later, where the model is created, with a list of the known names.
bool is_known_model(const std::string& name) {
  const auto images = models::list_models();
  return name == "gpt" || name == "lstm" ||
         std::any_of(images.begin(), images.end(),
                     [&](const models::ModelEntry& entry) { return entry.name == name; });
}

// Rejects keys that the chosen model, data, optimizer or schedule does not use. Defaults pass.
void refuse_misfits(const Config& config) {
  for (const auto& row : config.describe()) {
    if (row.value == row.fallback) continue;
    const auto use = std::find_if(uses().begin(), uses().end(),
                                  [&](const Use& one) { return one.key == row.key; });
    if (use == uses().end()) continue;
    const std::string& chosen = config.get_string(use->chosen_by);
    if (std::find(use->of.begin(), use->of.end(), chosen) != use->of.end()) continue;
    if (use->chosen_by == std::string("model.name") && !is_known_model(chosen)) continue;
    throw Error(Errc::kBadConfig, row.key + " (" + row.origin + ") is for " + use->chosen_by +
                                      " = " + any_of(use->of) + ", not \"" + chosen +
                                      "\": leave it at " + row.fallback);
  }
  try {
    comm::check_device_name(config.get_string("train.device"));
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig,
                "train.device (" + config.origin("train.device") + "): " + error.message());
  }
  const std::string& model = config.get_string("model.name");
  if (model == "lstm" && config.get_string("train.precision") == "f16") {
    throw Error(
        Errc::kBadConfig,
        "train.precision (" + config.origin("train.precision") +
            ") = \"f16\": libtorch has no LSTM in float16 on CPUs; use \"bf16\" or \"f32\"");
  }
  if (config.get_double("train.label_smoothing") > 0 &&
      config.get_string("train.loss") != "cross_entropy") {
    throw Error(Errc::kBadConfig, "train.label_smoothing (" +
                                      config.origin("train.label_smoothing") +
                                      ") is for train.loss = \"cross_entropy\", not \"" +
                                      config.get_string("train.loss") + "\": leave it at 0.0");
  }
  if (model != "gpt" && config.get_string("train.recompute") == "selective") {
    throw Error(Errc::kBadConfig,
                "train.recompute (" + config.origin("train.recompute") +
                    ") = \"selective\" is for model.name = \"gpt\"; use \"full\" or \"none\"");
  }
}

// A default would train something else than the recipe's author meant, without a word. `where`:
// begin of the message.
void require_choices(const Config& config, const std::string& where) {
  for (const char* key : {"model.name", "data.name"}) {
    if (config.origin(key) != "default") continue;
    throw Error(Errc::kBadConfig, where + key +
                                      " is not set: a recipe names its model and its data, such "
                                      "as name = \"cnn\" below [model] and name = \"shapes\" "
                                      "below [data]");
  }
}

// A run stores the name of its recipe. Runs of older weft versions do not; for them, model.name and
// data.name are compared.
void refuse_other_recipe(const Config& run, const Config& asked, const std::string& recipe,
                         const std::string& path) {
  const std::string& of = run.get_string("run.recipe");
  if (!of.empty() && of != recipe) {
    throw Error(Errc::kBadConfig, "cannot resume " + path + ": it is a run of the recipe \"" + of +
                                      "\", not of \"" + recipe + "\"");
  }
  for (const char* key : {"model.name", "data.name"}) {
    if (!of.empty() || run.get_string(key) == asked.get_string(key)) continue;
    throw Error(Errc::kBadConfig, "cannot resume " + path + " as \"" + recipe + "\": its " + key +
                                      " is \"" + run.get_string(key) + "\", the recipe's is \"" +
                                      asked.get_string(key) + "\"");
  }
}

// Rejects changes of [model] and [data], except the location of files and data.prefetch.
void refuse_other_model(const Config& run, const Config& now, const std::string& path) {
  const auto rows = now.describe(), before = run.describe();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& key = rows[i].key;
    const bool fixed = key.rfind("model.", 0) == 0 || key.rfind("data.", 0) == 0;
    if (!fixed || rows[i].value == before[i].value || key == "data.dir" || key == "data.file" ||
        key == "data.prefetch")
      continue;
    throw Error(Errc::kBadConfig, "cannot resume " + path + " with " + key + " = " + rows[i].value +
                                      " (" + rows[i].origin + "): the run has " + before[i].value +
                                      ", and keeps its model and data; start a new run");
  }
}

}  // namespace

std::string find_recipe(const std::string& recipe) {
  std::error_code ignored;
  const fs::path path(recipe);
  if (fs::is_regular_file(path, ignored)) return path.string();
  if (fs::is_regular_file(path / "recipe.toml", ignored)) return (path / "recipe.toml").string();
  const auto folders = recipe_folders();
  for (const auto& folder : folders) {
    if (!recipe.empty() && fs::is_regular_file(folder / recipe / "recipe.toml", ignored))
      return (folder / recipe / "recipe.toml").string();
  }
  fail_unknown(recipe, folders);
}

std::string recipe_name(const std::string& path) {
  const fs::path file(path);
  if (file.filename() != "recipe.toml") return file.stem().string();
  std::error_code ignored;
  return fs::weakly_canonical(file, ignored).parent_path().filename().string();
}

void check_recipe(const Config& config) {
  require_choices(config, "");
  observe::check_run_name(config.get_string("run.name"));
  internal::check_optimizer_keys(config);
  const std::string& model = config.get_string("model.name");
  if ((config.get_string("data.name") == "text") != (model == "gpt" || model == "lstm")) {
    throw Error(Errc::kBadConfig,
                "data.name = \"text\" and model.name = \"gpt\" or \"lstm\" go together (" +
                    config.origin("model.name") + ", " + config.origin("data.name") + ")");
  }
  refuse_misfits(config);
  internal::check_pretrained(config);
  internal::check_plan_keys(config);
  try {
    compress::parse(config.get_string("parallel.codec"));
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig,
                "parallel.codec (" + config.origin("parallel.codec") + "): " + error.message());
  }
}

void check_files(const Config& config) {
  std::error_code ignored;
  if (!is_text(config)) {
    return data::check_image_files(
        {.name = config.get_string("data.name"), .dir = config.get_string("data.dir")});
  }
  const std::string& file = config.get_string("data.file");
  if (file.empty())
    throw Error(Errc::kBadConfig, "data.file is not set: name a text file, or a folder of them");
  if (!fs::exists(file, ignored))
    throw Error(Errc::kBadConfig,
                "data.file (" + config.origin("data.file") + "): there is no file " + file);
}

std::vector<std::string> idle_keys(const Config& config) {
  struct Idle {
    std::vector<const char*> keys;
    bool is_idle;
    const char* why;
  };
  const bool is_planned = config.get_string("parallel.plan") == "auto";
  const auto is_one = [&](const char* axis) { return !is_planned && config.get_int(axis) == 1; };
  const Idle all[] = {{{"train.micro_shards"},
                       !config.get_bool("train.reproducible"),
                       "train.reproducible is false"},
                      {{"parallel.zero_stage"}, is_one("parallel.fsdp"), "parallel.fsdp is 1"},
                      {{"parallel.schedule"}, is_one("parallel.pp"), "parallel.pp is 1"},
                      {{"parallel.context"}, is_one("parallel.cp"), "parallel.cp is 1"},
                      {{"train.best_metric", "train.best_is", "train.min_improvement"},
                       !config.get_bool("train.keep_best") && config.get_int("train.patience") == 0,
                       "neither train.keep_best nor train.patience is set"},
                      {{"model.experts_top_k", "model.experts_capacity", "model.experts_balance"},
                       config.get_int("model.experts") == 0,
                       "model.experts is 0"}};
  std::vector<std::string> lines;
  for (const auto& row : config.describe()) {
    if (row.value == row.fallback) continue;
    for (const Idle& one : all) {
      const bool is_named =
          std::ranges::any_of(one.keys, [&](const std::string& key) { return key == row.key; });
      if (one.is_idle && is_named)
        lines.push_back(row.key + " (" + row.origin + ") has no effect: " + one.why);
    }
  }
  return lines;
}

std::optional<Config> load_recipe_of_run(const std::string& recipe,
                                         const std::vector<std::string>& assignments,
                                         const std::string& name) {
  const std::string file = find_recipe(recipe);
  Config asked = Config::load(file, recipe_schema());
  for (const auto& assignment : assignments) asked.set(assignment);
  const std::string& dir = asked.get_string("run.dir");
  std::string run = !name.empty() ? name : asked.get_string("run.name");
  if (run.empty()) run = internal::newest_run(dir, recipe_name(file)).value_or("");
  const std::string path = dir + "/" + run + "/config.toml";
  if (run.empty() || !fs::exists(path)) return std::nullopt;
  const Config before = Config::load(path, recipe_schema());
  refuse_other_recipe(before, asked, recipe_name(file), dir + "/" + run);
  Config config = before;
  for (const auto& assignment : assignments) config.set(assignment);
  refuse_other_model(before, config, dir + "/" + run);
  config.set("run.dir=" + dir, "--resume");
  config.set("run.name=" + run, "--resume");
  check_recipe(config);
  return config;
}

std::string outline_of(const Config& config) {
  // Places and addresses may differ from host to host.
  static const std::set<std::string> kOfHost{"data.dir", "data.file", "data.prefetch",
                                             "model.from"};
  std::string text;
  for (const auto& row : config.describe()) {
    const bool own =
        row.key.starts_with("run.") || row.key.starts_with("comm.") || kOfHost.contains(row.key);
    if (!own) text += row.key + " = " + row.value + "; ";
  }
  return text;
}

bool is_text(const Config& config) { return config.get_string("data.name") == "text"; }

Config load_recipe(const std::string& recipe, const std::vector<std::string>& assignments) {
  const std::string file = find_recipe(recipe);
  Config config = Config::load(file, recipe_schema());
  for (const auto& assignment : assignments) config.set(assignment);
  require_choices(config, file + ": ");
  internal::take_pretrained(config);
  check_recipe(config);
  return config;
}

}  // namespace weft::train
