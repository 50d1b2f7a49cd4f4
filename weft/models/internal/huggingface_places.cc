#include "weft/models/internal/huggingface_places.h"

#include <utility>

#include "weft/base/error.h"
#include "weft/models/huggingface.h"

namespace weft::models::internal {
namespace {

std::vector<Place> gpt2_block(const std::string& i) {
  const std::string ours = "blocks." + i + ".", theirs = "transformer.h." + i + ".";
  std::vector<Place> all;
  const auto norm = [&](const std::string& from, const std::string& to) {
    for (const char* kind : {"weight", "bias"})
      all.push_back({ours + from + "." + kind, theirs + to + "." + kind});
  };
  const auto linear = [&](const std::string& from, const std::string& to, int third = -1) {
    all.push_back({ours + from + ".weight", theirs + to + ".weight", true, third});
    all.push_back({ours + from + ".bias", theirs + to + ".bias", false, third});
  };
  norm("norm1", "ln_1");
  linear("attention.q_proj", "attn.c_attn", 0);
  linear("attention.k_proj", "attn.c_attn", 1);
  linear("attention.v_proj", "attn.c_attn", 2);
  linear("attention.o_proj", "attn.c_proj");
  norm("norm2", "ln_2");
  linear("mlp.up_proj", "mlp.c_fc");
  linear("mlp.down_proj", "mlp.c_proj");
  return all;
}

// Places of a Llama block. Experts have Mixtral's names.
std::vector<Place> llama_block(const std::string& i, const GptOptions& o) {
  const std::string ours = "blocks." + i + ".", theirs = "model.layers." + i + ".";
  std::vector<Place> all{{ours + "norm1.weight", theirs + "input_layernorm.weight"},
                         {ours + "norm2.weight", theirs + "post_attention_layernorm.weight"}};
  for (const std::string name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    all.push_back(
        {ours + "attention." + name + ".weight", theirs + "self_attn." + name + ".weight"});
    if (o.attention_bias)
      all.push_back({ours + "attention." + name + ".bias", theirs + "self_attn." + name + ".bias"});
  }
  if (o.experts == 0) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"})
      all.push_back({ours + "mlp." + name + ".weight", theirs + "mlp." + name + ".weight"});
    return all;
  }
  all.push_back({ours + "experts.router.weight", theirs + "block_sparse_moe.gate.weight"});
  for (std::int64_t e = 0; e < o.experts; ++e) {
    for (const auto& [from, to] :
         {std::pair{"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}}) {
      const std::string name =
          theirs + "block_sparse_moe.experts." + std::to_string(e) + "." + to + ".weight";
      all.push_back({.ours = ours + "experts." + from, .theirs = name, .expert = e});
    }
  }
  return all;
}

}  // namespace

std::vector<Place> places_of(const GptOptions& o) {
  const bool gpt2 = huggingface_family(o) == HuggingFace::kGpt2;
  std::vector<Place> all;
  if (gpt2) {
    all = {{"embedding.tokens.weight", "transformer.wte.weight"},
           {"embedding.positions", "transformer.wpe.weight"},
           {"head.norm.weight", "transformer.ln_f.weight"},
           {"head.norm.bias", "transformer.ln_f.bias"}};
  } else {
    all = {{"embedding.tokens.weight", "model.embed_tokens.weight"},
           {"head.norm.weight", "model.norm.weight"}};
  }
  if (!o.tied) all.push_back({"head.output.weight", "lm_head.weight"});
  for (std::int64_t i = 0; i < o.layers; ++i) {
    for (Place& place : gpt2 ? gpt2_block(std::to_string(i)) : llama_block(std::to_string(i), o))
      all.push_back(std::move(place));
  }
  return all;
}

bool passed_over(const std::string& name, const GptOptions& o) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || (o.tied && name == "lm_head.weight");
}

void require_floating(const std::string& name, at::ScalarType type) {
  if (at::isFloatingType(type)) return;
  constexpr std::pair<at::ScalarType, const char*> kTypes[] = {
      {at::kChar, "int8"}, {at::kByte, "uint8"}, {at::kShort, "int16"},
      {at::kInt, "int32"}, {at::kLong, "int64"}, {at::kBool, "bool"}};
  std::string text = c10::toString(type);
  for (const auto& [one, as_text] : kTypes) {
    if (one == type) text = as_text;
  }
  throw Error(Errc::kInvalidArgument,
              "Hugging Face weights: \"" + name + "\" is " + text +
                  "; weft reads float64, float32, float16 and bfloat16, not quantized weights");
}

std::string find(const std::map<std::string, std::vector<std::int64_t>>& sizes,
                 const std::string& name) {
  const std::string shorter = name.substr(name.find('.') + 1);
  WEFT_REQUIRE(sizes.contains(name) || sizes.contains(shorter),
               "Hugging Face weights: \"" + name + "\" is missing");
  return sizes.contains(name) ? name : shorter;
}

}  // namespace weft::models::internal
