#include "weft/train/internal/text_model.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/reader.h"
#include "weft/models/huggingface.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/text.h"
#include "weft/train/recipe.h"

namespace weft::train::internal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{128} << 20;

// Leading special token of a TemplateProcessing ({"single": [{"SpecialToken": {"id": "<s>", …}},
// {"Sequence": …}]}), or of the first such processor in a Sequence.
std::string first_special(const json& processor) {
  if (!processor.is_object()) return "";
  if (processor.contains("processors") && processor.at("processors").is_array()) {
    for (const json& one : processor.at("processors")) {
      if (const std::string token = first_special(one); !token.empty()) return token;
    }
  }
  if (!processor.contains("single") || !processor.at("single").is_array() ||
      processor.at("single").empty())
    return "";
  const json& first = processor.at("single").front();
  const json special = first.is_object() ? first.value("SpecialToken", json()) : json();
  const json id = special.is_object() ? special.value("id", json()) : json();
  return id.is_string() ? id.get<std::string>() : "";
}

void take_gpt(TextModel& source, models::Gpt gpt) {
  gpt->eval();
  source.reader = make_reader(gpt);
  source.module = gpt.ptr();
  source.gpt = std::move(gpt);
}

// The token with which the tokenizer's post_processor begins each text.
void take_begin(TextModel& source) {
  if (const auto first = source.tokenizer->id_of(begin_token(source.json)))
    source.begin.push_back(*first);
}

TextModel load_huggingface_folder(const std::string& folder, const parallel::TensorParallel& tp) {
  const models::HuggingFaceConfig config = models::read_huggingface_config(folder);
  TextModel source;
  source.json = read_file(folder + "/tokenizer.json", kMaxBytes);
  source.tokenizer = data::text::parse_tokenizer(source.json, folder + "/tokenizer.json");
  if (source.tokenizer->vocab_size() > config.options.vocabulary) {
    throw Error(Errc::kBadConfig, folder + "/tokenizer.json has " +
                                      std::to_string(source.tokenizer->vocab_size()) +
                                      " tokens, but the model of config.json has " +
                                      std::to_string(config.options.vocabulary));
  }
  models::Gpt gpt(config.options, tp);
  in_folder(folder, [&] { models::load_huggingface(*gpt, models::huggingface_files(folder)); });
  take_gpt(source, gpt);
  take_begin(source);
  source.ends = config.ends;
  source.start = config.begin ? *config.begin : config.ends.empty() ? 0 : config.ends.front();
  return source;
}

}  // namespace

std::string begin_token(const std::string& text) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return document.is_object() ? first_special(document.value("post_processor", json())) : "";
}

TextModel load_run(const std::string& folder, const parallel::TensorParallel& tp) {
  WEFT_REQUIRE(fs::exists(folder + "/config.toml"),
               folder + " is no run folder: it has no config.toml");
  const Config config = Config::load(folder + "/config.toml", recipe_schema());
  const RecipeSettings settings = recipe_settings_of(config);
  WEFT_REQUIRE(is_text(config), folder + " is not a run of a text recipe (its data.name is \"" +
                                    settings.data.name + "\")");
  const std::string newest = checkpoint::newest_complete(
      folder + "/ckpt",
      folder +
          " has no checkpoint yet; train with train.checkpoint_every, checkpoint_steps or "
          "checkpoint_minutes above 0",
      [](const std::string& line) { log_warn("passing over a damaged checkpoint: " + line); });
  TextModel source;
  const std::string kept = folder + "/tokenizer.json";
  if (fs::exists(kept)) source.json = read_file(kept, kMaxBytes);
  source.tokenizer = make_tokenizer(source.json);
  const checkpoint::Reader saved(newest);
  if (const std::int64_t vocabulary = source.tokenizer->vocab_size();
      settings.model.name == "lstm") {
    WEFT_REQUIRE(
        tp.size() == 1,
        folder + " is a run of an LSTM, whose layers are not split over ranks: start one process");
    models::Lstm lstm(lstm_options(settings.model, vocabulary));
    load_parameters(*lstm, {}, saved);
    lstm->eval();
    source.reader = make_reader(lstm);
    source.module = lstm.ptr();
  } else {
    models::Gpt gpt(gpt_options(settings, vocabulary), tp);
    load_parameters(*gpt, tp, saved);
    take_gpt(source, gpt);
  }
  // The token after an end token starts a document, so an end token can start the text.
  if (const auto end = source.tokenizer->id_of(end_token(*source.tokenizer))) {
    source.ends.push_back(*end);
    source.start = *end;
  }
  if (const auto given = pretrained(settings)) {
    take_begin(source);
    if (given->begin) source.start = *given->begin;
    for (const std::int64_t end : given->ends) {
      if (std::ranges::find(source.ends, end) == source.ends.end()) source.ends.push_back(end);
    }
  }
  return source;
}

TextModel load_text_model(const std::string& folder, const parallel::TensorParallel& tp) {
  if (fs::exists(folder + "/config.toml")) return load_run(folder, tp);
  WEFT_REQUIRE(
      fs::exists(folder + "/config.json"),
      folder +
          " holds no model: neither config.toml, as a run has it, nor Hugging Face's config.json");
  return load_huggingface_folder(folder, tp);
}

}  // namespace weft::train::internal
