#include "weft/train/recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/compress/spec.h"
#include "weft/data/image_set.h"
#include "weft/observe/run/run_folder.h"
#include "weft/train/internal/key_uses.h"
#include "weft/train/internal/newest_run.h"
#include "weft/train/internal/optimizer_options.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/settings.h"
#include "weft/train/options.h"

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

// Rejects keys that the chosen model, data, optimizer or schedule does not use. Defaults pass.
void refuse_misfits(const Config& config) {
  internal::refuse_unused_keys(config);
  internal::check_device_key(config);
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

Schema recipe_schema() {
  Schema schema;
  internal::SchemaVisitor visit(schema);
  internal::RecipeSettings defaults;
  each_setting(defaults, visit);
  return schema.add(options_schema());
}

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
  const internal::RecipeSettings settings = internal::recipe_settings_of(config);
  if (!is_text(config)) return data::check_image_files(internal::image_set_of(settings.data));
  const std::string& file = settings.data.file;
  if (file.empty())
    throw Error(Errc::kBadConfig, "data.file is not set: name a text file, or a folder of them");
  if (!fs::exists(file, ignored))
    throw Error(Errc::kBadConfig, settings.where("data.file") + ": there is no file " + file);
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
