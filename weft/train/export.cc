#include "weft/train/export.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/models/huggingface.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_model.h"

namespace weft::train {
namespace {

// A post_processor may add tokens to a text, such as <s>. Without source.begin, the model has not
// been trained with them.
std::string tokenizer_json(const internal::TextModel& source) {
  if (source.json.empty()) return data::text::byte_tokenizer_json();
  if (!source.begin.empty()) return source.json;
  nlohmann::json document = parse_json(source.json, "tokenizer.json");
  nlohmann::json& post_processor = document["post_processor"];  // null where it is missing
  if (post_processor.is_null()) return source.json;
  post_processor = nullptr;
  return document.dump(2) + "\n";
}

}  // namespace

void export_huggingface(const std::string& run, const std::string& output) {
  WEFT_REQUIRE(!std::filesystem::exists(output + "/config.json"),
               output + " holds a model already (config.json); name another folder");
  const internal::TextModel source = internal::load_run(run, {});
  WEFT_REQUIRE(source.gpt, run +
                               " is a run of an LSTM, for which transformers has no model; weft "
                               "checkpoint convert writes its weights as one file");
  make_directories(output);
  checkpoint::save_safetensors(output + "/model.safetensors",
                               {models::get_huggingface(*source.gpt), {{"format", "pt"}}});
  write_file_atomic(output + "/tokenizer.json", tokenizer_json(source));
  nlohmann::json tokenizer = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"clean_up_tokenization_spaces", false},
                              {"model_max_length", source.gpt->options.sequence_length}};
  models::HuggingFaceConfig config{source.gpt->options, {}, source.ends};
  if (!source.ends.empty()) {
    config.begin = source.start;
    if (const std::string end = internal::end_token(*source.tokenizer); !end.empty()) {
      tokenizer["bos_token"] =
          source.tokenizer->decode({static_cast<data::text::TokenId>(source.start)});
      tokenizer["eos_token"] = end;
    }
  }
  write_file_atomic(output + "/tokenizer_config.json", tokenizer.dump(2) + "\n");
  write_file_atomic(output + "/config.json", models::huggingface_config(config));
}

}  // namespace weft::train
