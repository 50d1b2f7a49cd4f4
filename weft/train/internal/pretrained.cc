#include "weft/train/internal/pretrained.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"

namespace weft::train::internal {
namespace {

constexpr std::size_t kMaxConfigBytes = 32 << 10;  // A configuration has at most 64 KiB.

// The keys that config.json gives.
constexpr const char* kGiven[] = {
    "model.family",        "model.layers",           "model.width",
    "model.heads",         "model.kv_heads",         "model.experts",
    "model.experts_top_k", "model.experts_capacity", "model.experts_balance"};

std::string where(const Config& config, const std::string& key) {
  return key + " (" + config.origin(key) + ")";
}

}  // namespace

void in_folder(const std::string& folder, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != Errc::kInvalidArgument || error.message().find(folder) == 0) throw;
    throw Error(error.code(), folder + ": " + error.message());
  }
}

void take_pretrained(Config& config) {
  const std::string folder = config.get_string("model.from");
  if (folder.empty() || !config.get_string("model.config").empty()) return;
  const std::string file = folder + "/config.json", tokenizer = folder + "/tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw Error(Errc::kBadConfig, where(config, "model.from") + ": " + folder +
                                      " has no config.json; name a folder with a model in Hugging "
                                      "Face's format");
  }
  const std::string text = read_file(file, kMaxConfigBytes);
  models::parse_huggingface_config(text, file);  // Throws for a model that is not supported.
  config.set("model.config=" + parse_json(text, file).dump(), "model.from");
  if (config.origin("data.tokenizer") != "default") return;
  if (!std::filesystem::exists(tokenizer)) {
    throw Error(Errc::kBadConfig, where(config, "model.from") + ": there is no " + tokenizer +
                                      "; put it there, or set data.tokenizer");
  }
  config.set("data.tokenizer=" + tokenizer, "model.from");
}

void check_pretrained(const Config& config) {
  const bool has_config = !config.get_string("model.config").empty();
  if (config.get_string("model.from").empty()) {
    if (!has_config) return;
    throw Error(Errc::kBadConfig, where(config, "model.config") +
                                      " is set by weft; set model.from to a folder with the "
                                      "weights instead");
  }
  const Config defaults(config.schema());
  const auto rows = config.describe(), usual = defaults.describe();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const char* key : kGiven) {
      if (rows[i].key != key || rows[i].value == usual[i].value) continue;
      throw Error(Errc::kBadConfig, where(config, key) +
                                        ": model.from gives the sizes of the model; leave it at " +
                                        usual[i].value);
    }
  }
}

std::optional<models::HuggingFaceConfig> pretrained(const RecipeSettings& settings) {
  if (settings.model.config.empty()) return std::nullopt;
  auto found = models::parse_huggingface_config(settings.model.config, "model.config");
  models::GptOptions& options = found.options;
  options.dropout = settings.model.dropout;
  if (const auto length = settings.model.sequence; length > options.sequence_length) {
    throw Error(Errc::kBadConfig, settings.where("model.sequence") + " = " +
                                      std::to_string(length) + " is longer than the " +
                                      std::to_string(options.sequence_length) +
                                      " positions of the model in model.from");
  }
  return found;
}

std::unique_ptr<checkpoint::SliceSource> pretrained_weights(const RecipeSettings& settings) {
  const std::string& folder = settings.model.from;
  std::unique_ptr<checkpoint::SliceSource> source;
  in_folder(folder, [&] {
    source = models::huggingface_source(pretrained(settings)->options,
                                        models::huggingface_files(folder));
  });
  return source;
}

}  // namespace weft::train::internal
