#include "weft/plan/scenario/internal/model_fields.h"

#include <memory>
#include <optional>

#include "weft/base/error.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/model/profile.h"

namespace weft::plan::internal {
namespace {

using nlohmann::json;

constexpr Fields::Range kSizes = {1, 1e9};
constexpr Fields::Range kFromZero = {0, 1e9};

void set(std::int64_t& field, std::optional<std::int64_t> value) {
  if (value) field = *value;
}

void read_transformer(Fields& f, Model& m) {
  set(m.layers, f.whole({"layers", "num_layers", "depth"}, {1, 1e5}));
  set(m.hidden, f.whole({"hidden", "hidden_size", "width"}, {1, 1e7}));
  set(m.sequence, f.whole({"sequence", "seq", "seq_len", "sequence_length"}, {1, 1e8}));
  set(m.vocab, f.whole({"vocab", "vocab_size", "vocabulary"}, kSizes));
  const bool shaped = f.has({"hidden", "hidden_size", "width"});
  const auto ffn = f.whole({"ffn", "ffn_size", "intermediate_size"}, kFromZero);
  const auto heads = f.whole({"heads", "num_heads", "attention_heads"}, {0, 1e6});
  const auto kv = f.whole({"kv_heads", "num_kv_heads"}, {0, 1e6});
  // Sizes of the family's best-known member hold for its own width only.
  if (shaped) m.ffn = m.heads = m.kv_heads = 0;
  set(m.ffn, ffn);
  set(m.heads, heads);
  set(m.kv_heads, kv);
  set(m.head_width, f.whole({"head_width", "head_dim"}, {0, 1e6}));
  set(m.experts, f.whole({"experts", "num_experts"}, {0, 1e6}));
  set(m.top_k, f.whole({"top_k", "topk"}, {1, 1e6}));
  set(m.expert_interval, f.whole({"expert_interval"}, {1, 1e5}));
  set(m.dense_layers, f.whole({"dense_layers", "first_k_dense_replace"}, {0, 1e5}));
  set(m.dense_ffn, f.whole({"dense_ffn"}, kFromZero));
  set(m.shared_ffn, f.whole({"shared_ffn"}, kFromZero));
  set(m.latent, f.whole({"latent", "moe_latent_size"}, kFromZero));
  set(m.query_rank, f.whole({"query_rank", "q_lora_rank"}, kFromZero));
  set(m.kv_rank, f.whole({"kv_rank", "kv_lora_rank"}, kFromZero));
  set(m.rotary_width, f.whole({"rotary_width", "qk_rope_head_dim"}, kFromZero));
  set(m.window, f.whole({"window", "sliding_window"}, kFromZero));
  set(m.predicts, f.whole({"predicts", "num_nextn_predict_layers", "mtp_num_layers"}, {0, 100}));
  set(m.adapter, f.whole({"adapter", "lora_rank"}, kFromZero));
  set(m.state, f.whole({"state", "ssm_state_size"}, kSizes));
  set(m.state_heads, f.whole({"state_heads", "mamba_num_heads"}, kFromZero));
  set(m.state_head_width, f.whole({"state_head_width", "mamba_head_dim"}, kSizes));
  set(m.state_groups, f.whole({"state_groups", "n_groups"}, kSizes));
  if (const auto pattern = f.text({"pattern", "hybrid_override_pattern"})) m.pattern = *pattern;
  if (const auto gated = f.flag({"gated"})) m.gated = *gated;
  set(m.predicted, f.whole({"predicted", "max_predictions"}, {1, 1e8}));
  if (m.family == Family::kLlama && shaped) m.tied = m.hidden <= 3072;
  if (m.experts == 1 || m.experts == 0) m.experts = 0;
}

void read_images(Fields& f, Model& m) {
  set(m.image, f.whole({"image", "image_size", "resolution"}, {1, 16384}));
  set(m.channels, f.whole({"channels", "image_channels"}, {1, 1e6}));
  set(m.classes, f.whole({"classes", "num_classes"}, kSizes));
  set(m.patch, f.whole({"patch", "patch_size"}, {1, 16384}));
  set(m.base, f.whole({"base", "base_channels", "filters", "num_filters"}, {1, 1e5}));
  set(m.factor, f.whole({"factor", "width_factor"}, {1, 1000}));
  set(m.convs, f.whole({"convs", "num_convs"}, {1, 1000}));
  if (const auto small = f.flag({"small_stem"})) m.small_stem = *small;
  if (is_transformer(m)) return;
  set(m.layers, f.whole({"layers", "num_layers", "depth"}, {1, 1e4}));
  // Fields of transformers that tables may carry for all models.
  for (const char* name :
       {"hidden", "ffn", "heads", "kv_heads", "vocab", "sequence", "experts", "top_k"})
    f.has({name});
}

// The profile's times, where it has the model's blocks; else the profile's blocks alone.
void take_profile(const std::string& file, Model& m, std::vector<std::string>& notes) {
  Profile profile = load_profile(file);
  if (!profile.machine.empty() && profile.machine != machine_identity())
    notes.push_back("the profile was measured on another machine: " + profile.machine);
  if (blocks_of(complete(m), {.precision = Precision::kFp32}).size() == profile.blocks.size()) {
    m.profile = std::make_shared<const Profile>(std::move(profile));
  } else {
    notes.emplace_back("the model has the profile's blocks");
    m = measured_model(std::move(profile));
  }
}

std::string text_in(const json* object, const char* name) {
  if (object == nullptr || !object->is_object() || !object->contains(name)) return "";
  const json& value = (*object)[name];
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<Model> model_named(const std::string& name) {
  if (auto known = known_model(name)) return known;
  if (is_family(name)) return default_model(name);
  return std::nullopt;
}

// The model whose sizes hold where none are given: a well-known one that family, size or name say,
// else the family's best-known member.
Model begin_with(Fields& f, const json* object, std::vector<std::string>& notes) {
  const auto given = f.text({"family", "type"});
  const std::string family = given.value_or("gpt"), size = text_in(object, "size"),
                    name = text_in(object, "name");
  f.has({"name", "size"});
  const bool has_sizes = f.has({"layers", "num_layers", "depth", "hidden", "hidden_size", "width",
                                "parameters", "params", "num_parameters", "profile"});
  if (!size.empty() && !has_sizes) {
    if (const auto known = model_named(family + " " + size)) return *known;
  }
  if (!name.empty() && (!given || !has_sizes)) {
    if (const auto known = known_model(name)) return *known;
  }
  WEFT_REQUIRE(size.empty() || has_sizes,
               "model.size \"" + size.substr(0, 40) + "\" of \"" + family.substr(0, 40) +
                   "\" is not known; give layers, hidden and the other sizes");
  if (const auto known = known_model(family)) return *known;
  const Model m = default_model(family);
  if (!is_family(family))
    notes.push_back("family " + family.substr(0, 40) + " counts as " + to_string(m.family));
  return m;
}

}  // namespace

Model read_model(const json* object, std::vector<std::string>& notes) {
  Fields f(object, "model");
  Model m = begin_with(f, object, notes);
  if (is_transformer(m)) read_transformer(f, m);
  if (has_images(m)) read_images(f, m);
  if (const auto tied = f.flag({"tied"})) m.tied = *tied;
  if (const auto dropout = f.number({"dropout"}, {0, 1})) m.dropout = *dropout > 0;
  const bool shaped = f.has({"layers", "num_layers", "hidden", "hidden_size", "image"});
  if (const auto psi = f.number({"parameters", "params", "num_parameters"}, {1, 1e16})) {
    if (!shaped) m.only_parameters = *psi;
  }
  if (const auto profile = f.text({"profile"})) take_profile(*profile, m, notes);
  for (const std::string& name : f.unknown()) notes.push_back("ignored " + name);
  return m;
}

}  // namespace weft::plan::internal
