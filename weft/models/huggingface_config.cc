// Reads and writes config.json and reads the index of a Hugging Face folder.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/models/huggingface.h"

namespace weft::models {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

// An object of a JSON file, by key. Absent and null are the same, as transformers writes null for a
// value that is not set.
class Keys {
 public:
  Keys(json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
    if (!object_.is_object()) throw Error(Errc::kCorrupt, where_ + " is not a JSON object");
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  const json& at(const char* key) const { return object_.at(key); }
  Keys below(const char* key) const { return {object_.at(key), where_ + ": " + key}; }

  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    if (!has(key) && otherwise) return *otherwise;
    const bool good =
        has(key) && at(key).is_number_integer() && at(key) >= 1 && at(key) <= std::int64_t{1} << 40;
    if (!good) refuse(key, "must be a whole number of at least 1");
    return at(key).get<std::int64_t>();
  }
  double number(const char* key, std::optional<double> otherwise = {}) const {
    if (!has(key) && otherwise) return *otherwise;
    if (!has(key)) refuse(key, "is missing");
    if (!at(key).is_number()) refuse(key, "must be a number");
    return at(key).get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) refuse(key, "must be true or false");
    return at(key).get<bool>();
  }
  std::string word(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_string()) refuse(key, "must be a string");
    return at(key).get<std::string>();
  }
  // Refuses a flag for which weft supports only the value `only`.
  void expect(const char* key, bool only) const {
    if (flag(key, only) != only)
      refuse(key, std::string("is not supported; weft has ") + (only ? "true" : "false") + " only");
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw Error(
        Errc::kBadConfig,
        where_ + ": " + key + (has(key.c_str()) ? " = " + at(key.c_str()).dump() : "") + " " + why);
  }

 private:
  json object_;
  std::string where_;
};

Keys read_keys(const std::string& path) {
  return {parse_json(read_file(path, kMaxBytes), path), path};
}

GptOptions gpt2_options(const Keys& keys) {
  GptOptions o;
  o.vocabulary = keys.size("vocab_size");
  o.sequence_length = keys.size("n_positions");
  o.width = keys.size("n_embd");
  o.layers = keys.size("n_layer");
  o.heads = keys.size("n_head");
  o.hidden = keys.size("n_inner", 4 * o.width);
  o.norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  o.tied = keys.flag("tie_word_embeddings", true);
  keys.expect("scale_attn_weights", true);
  keys.expect("scale_attn_by_inverse_layer_idx", false);
  keys.expect("add_cross_attention", false);
  const std::string activation = keys.word("activation_function", "gelu_new");
  if (activation == "gelu") {
    o.activation = Activation::kGelu;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    keys.refuse("activation_function",
                "is not supported; weft has gelu_new, gelu_pytorch_tanh and gelu");
  }
  return o;
}

// transformers turns this part of each head. weft turns whole heads.
void expect_whole_heads(const Keys& keys) {
  constexpr const char* kPart = "partial_rotary_factor";
  if (keys.number(kPart, 1) != 1) keys.refuse(kPart, "is not supported; weft has 1 only");
}

// Since version 5, transformers writes "rope_parameters" instead of "rope_scaling" and
// "rope_theta".
void read_rope(const Keys& keys, double theta, GptOptions& o) {
  const bool has_new = keys.has("rope_parameters"), has_old = keys.has("rope_scaling");
  if (has_new && has_old && keys.at("rope_parameters") != keys.at("rope_scaling"))
    keys.refuse("rope_scaling", "is not that of rope_parameters; keep one of them");
  o.rope_theta = keys.number("rope_theta", theta);
  expect_whole_heads(keys);
  const char* name = has_new ? "rope_parameters" : "rope_scaling";
  if (!has_new && !has_old) return;
  const Keys rope = keys.below(name);
  expect_whole_heads(rope);
  o.rope_theta = rope.number("rope_theta", o.rope_theta);
  const char* kind = rope.has("rope_type") ? "rope_type" : "type";
  if (rope.has("factor") && !rope.has(kind)) rope.refuse("rope_type", "is missing beside factor");
  const std::string type = rope.word(kind, "default");
  if (type == "default") return;
  if (type != "llama3") rope.refuse(kind, "is not supported; weft has default and llama3");
  o.rope_scaling.factor = rope.number("factor");
  o.rope_scaling.low = rope.number("low_freq_factor");
  o.rope_scaling.high = rope.number("high_freq_factor");
  o.rope_scaling.original = rope.number("original_max_position_embeddings");
}

// The values that transformers takes for missing keys. With kv_heads 0, there are as many as heads.
struct Missing {
  std::int64_t positions = 2048, kv_heads = 0;
  double norm_eps = 1e-6, rope_theta = 10000;
};

GptOptions llama_options(const Keys& keys, const Missing& missing) {
  GptOptions o = like_llama({});
  o.vocabulary = keys.size("vocab_size");
  o.sequence_length = keys.size("max_position_embeddings", missing.positions);
  o.width = keys.size("hidden_size");
  o.layers = keys.size("num_hidden_layers");
  o.heads = keys.size("num_attention_heads");
  o.kv_heads = keys.size("num_key_value_heads", missing.kv_heads > 0 ? missing.kv_heads : o.heads);
  o.head_width = keys.size("head_dim", std::max<std::int64_t>(1, o.width / o.heads));
  o.hidden = keys.size("intermediate_size");
  o.norm_eps = keys.number("rms_norm_eps", missing.norm_eps);
  o.tied = keys.flag("tie_word_embeddings", false);
  o.attention_bias = keys.flag("attention_bias", false);
  keys.expect("mlp_bias", false);
  read_rope(keys, missing.rope_theta, o);
  if (keys.word("hidden_act", "silu") != "silu")
    keys.refuse("hidden_act", "is not supported; weft has silu");
  return o;
}

GptOptions llama_options(const Keys& keys) { return llama_options(keys, Missing{}); }

// The balance loss of transformers over that of a layer of weft. It is top_k times as large for the
// same load, and one mean over all layers, whereas weft adds the losses of the layers.
double balance_of_transformers(const GptOptions& o) {
  return static_cast<double>(o.experts_top_k) / static_cast<double>(o.layers);
}

GptOptions mixtral_options(const Keys& keys) {
  GptOptions o = llama_options(
      keys, {.positions = 131072, .kv_heads = 8, .norm_eps = 1e-5, .rope_theta = 1e6});
  o.experts = keys.size("num_local_experts");
  o.experts_top_k = keys.size("num_experts_per_tok", 2);
  o.experts_balance = keys.number("router_aux_loss_coef", 0.001) * balance_of_transformers(o);
  o.experts_jitter = keys.number("router_jitter_noise", 0);
  if (keys.has("sliding_window"))
    keys.refuse("sliding_window", "is not supported; weft attends to the whole sequence");
  return o;
}

void add_ids(const Keys& keys, HuggingFaceConfig& config) {
  const auto id = [&](const json& value, const char* key) {
    if (!value.is_number_integer() || value < 0 || value >= config.options.vocabulary)
      keys.refuse(key, "is not a token of the vocabulary");
    return value.get<std::int64_t>();
  };
  if (keys.has("bos_token_id")) config.begin = id(keys.at("bos_token_id"), "bos_token_id");
  if (!keys.has("eos_token_id")) return;
  const json& ends = keys.at("eos_token_id");
  for (const json& end : ends.is_array() ? ends : json::array({ends}))
    config.ends.push_back(id(end, "eos_token_id"));
}

json gpt2_json(const GptOptions& o) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", o.vocabulary},
          {"n_positions", o.sequence_length},
          {"n_embd", o.width},
          {"n_layer", o.layers},
          {"n_head", o.heads},
          {"n_inner", o.hidden == 0 ? 4 * o.width : o.hidden},
          {"activation_function", o.activation == Activation::kGelu ? "gelu" : "gelu_new"},
          {"layer_norm_epsilon", o.norm_eps},
          {"resid_pdrop", o.dropout},
          {"embd_pdrop", o.dropout},
          {"attn_pdrop", o.dropout}};
}

json llama_json(const GptOptions& o) {
  json text = {{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
               {"vocab_size", o.vocabulary},
               {"max_position_embeddings", o.sequence_length},
               {"hidden_size", o.width},
               {"num_hidden_layers", o.layers},
               {"num_attention_heads", o.heads},
               {"num_key_value_heads", o.kv_heads == 0 ? o.heads : o.kv_heads},
               {"head_dim", o.head_width == 0 ? o.width / o.heads : o.head_width},
               {"intermediate_size", o.hidden == 0 ? 4 * o.width : o.hidden},
               {"hidden_act", "silu"},
               {"rms_norm_eps", o.norm_eps},
               {"rope_theta", o.rope_theta},
               {"attention_bias", o.attention_bias},
               {"mlp_bias", false},
               {"attention_dropout", o.dropout}};
  const parallel::RopeScaling& s = o.rope_scaling;
  if (s.factor != 1) {
    text["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", s.factor},
        {"low_freq_factor", s.low},
        {"high_freq_factor", s.high},
        {"original_max_position_embeddings", static_cast<std::int64_t>(s.original)}};
  }
  return text;
}

json mixtral_json(const GptOptions& o) {
  json text = llama_json(o);
  text["architectures"] = {"MixtralForCausalLM"};
  text["model_type"] = "mixtral";
  text["num_local_experts"] = o.experts;
  text["num_experts_per_tok"] = o.experts_top_k;
  text["router_aux_loss_coef"] = o.experts_balance / balance_of_transformers(o);
  text["router_jitter_noise"] = o.experts_jitter;
  text["sliding_window"] = json();
  return text;
}

struct Family {
  HuggingFace family;
  const char* type;  // model_type
  GptOptions (*read)(const Keys& keys);
  json (*write)(const GptOptions& options);
};

constexpr Family kFamilies[] = {{HuggingFace::kGpt2, "gpt2", gpt2_options, gpt2_json},
                                {HuggingFace::kLlama, "llama", llama_options, llama_json},
                                {HuggingFace::kMixtral, "mixtral", mixtral_options, mixtral_json}};

}  // namespace

namespace {

// Throws for a link that leads nowhere, as a cache of the hub has it whose files were removed.
bool is_there(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(path, ignored)) return true;
  WEFT_REQUIRE(!fs::is_symlink(fs::symlink_status(path, ignored)),
               path + " is a link that leads nowhere, to " +
                   fs::read_symlink(path, ignored).string() + "; download the file again");
  return false;
}

}  // namespace

HuggingFaceConfig read_huggingface_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return parse_huggingface_config(read_file(path, kMaxBytes), path);
}

HuggingFaceConfig parse_huggingface_config(const std::string& text, const std::string& name) {
  const Keys keys(parse_json(text, name), name);
  const std::string type = keys.word("model_type", "");
  const auto* const family = std::ranges::find(kFamilies, type, &Family::type);
  if (family == std::end(kFamilies))
    keys.refuse("model_type", "is not supported; weft has gpt2, llama and mixtral");
  if (keys.has("quantization_config"))
    keys.refuse("quantization_config", "is not supported; weft reads f32, f16 and bf16 weights");
  HuggingFaceConfig config;
  config.options = family->read(keys);
  add_ids(keys, config);
  return config;
}

std::string huggingface_config(const HuggingFaceConfig& config) {
  json text = std::ranges::find(kFamilies, huggingface_family(config.options), &Family::family)
                  ->write(config.options);
  text["tie_word_embeddings"] = config.options.tied;
  text["torch_dtype"] = "float32";
  text["initializer_range"] = config.options.initial_std;
  text["bos_token_id"] = config.begin ? json(*config.begin) : json();
  text["eos_token_id"] = config.ends.empty()       ? json()
                         : config.ends.size() == 1 ? json(config.ends.front())
                                                   : json(config.ends);
  return text.dump(2) + "\n";
}

std::vector<std::string> huggingface_files(const std::string& folder) {
  const std::string one = folder + "/model.safetensors",
                    index = folder + "/model.safetensors.index.json";
  if (is_there(one)) return {one};
  WEFT_REQUIRE(
      is_there(index),
      folder +
          " has neither model.safetensors nor model.safetensors.index.json; other formats of "
          "weights are not read");
  const Keys keys = read_keys(index);
  std::set<std::string> files;
  if (keys.has("weight_map") && keys.at("weight_map").is_object()) {
    for (const auto& [tensor, file] : keys.at("weight_map").items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || name.find('/') != std::string::npos)
        throw Error(Errc::kCorrupt, index + ": \"" + tensor + "\" is in no file of the folder");
      if (!is_there(folder + "/" + name)) {
        throw Error(Errc::kInvalidArgument,
                    index + " names " + name + ", which is not in the folder; download it, too");
      }
      files.insert(folder + "/" + name);
    }
  }
  if (files.empty()) throw Error(Errc::kCorrupt, index + ": weight_map names no files");
  return {files.begin(), files.end()};
}

}  // namespace weft::models
