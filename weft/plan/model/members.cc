// Well-known models by name, and the names of families.
//
// Shapes, from the papers and the published configurations: GPT-2 (Radford et al. 2019), GPT-3
// (Brown et al. 2020, table 2.1, with the heads of 128 features that its text gives for XL), OPT
// (Zhang et al. 2022, table 1), BLOOM (Le Scao et al. 2022), Llama (Touvron et al. 2023), Llama 2
// (2023), Llama 3 (2024), Mistral 7B (2023), Mixtral (2024), BERT (Devlin et al. 2018), ViT
// (Dosovitskiy et al. 2020).
#include <algorithm>
#include <cctype>
#include <optional>

#include "weft/plan/model/model.h"

namespace weft::plan {
namespace {

struct Member {
  const char* name;  // As key_of() makes it.
  std::int64_t layers, hidden, heads, kv_heads = 0, ffn = 0;
};

struct Series {
  Model like;  // What its members have in common.
  std::vector<Member> members;
};

Model decoder(std::int64_t vocab, std::int64_t sequence) {
  return {.sequence = sequence, .vocab = vocab};
}

Model llama(std::int64_t vocab, std::int64_t sequence) {
  return {.family = Family::kLlama,
          .sequence = sequence,
          .vocab = vocab,
          .tied = false,
          .dropout = false};
}

Model mixtral() {
  Model m = llama(32000, 8192);
  m.experts = 8;
  m.top_k = 2;
  return m;
}

// A mixture in every block. Sizes: config.json of each model on huggingface.co.
Model experts(Model m, std::int64_t count, std::int64_t top_k, std::int64_t head_width) {
  m.experts = count;
  m.top_k = top_k;
  m.head_width = head_width;
  return m;
}

// GPT OSS (OpenAI 2025): every second block sees 128 positions.
Model gpt_oss(std::int64_t count) {
  Model m = experts(llama(201088, 4096), count, 4, 64);
  m.window = 128;
  m.expert_bias = true;
  return m;
}

// DeepSeek-V3 (2024, section 4.2) and Kimi K2 (2025), with the same attention.
Model compressed(std::int64_t vocab, std::int64_t count, std::int64_t dense) {
  Model m = experts(llama(vocab, 4096), count, 8, 128);
  m.dense_layers = dense;
  m.dense_ffn = 18432;
  m.shared_ffn = 2048;
  m.query_rank = 1536;
  m.kv_rank = 512;
  m.rotary_width = 64;
  return m;
}

Model deepseek(std::int64_t predicts) {
  Model m = compressed(129280, 256, 3);
  m.predicts = predicts;
  return m;
}

// Nemotron 3 (NVIDIA 2025; nemotron_h_provider.py of Megatron-Bridge).
Model nemotron(const char* pattern, std::int64_t state_heads, std::int64_t shared) {
  Model m = llama(131072, 8192);
  m.pattern = pattern;
  m.state_heads = state_heads;
  m.shared_ffn = shared;
  m.head_width = 128;
  m.gated = false;
  return m;
}

Model nemotron_nano() {
  Model m = nemotron("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 64, 3712);
  m.experts = 128;
  m.top_k = 6;
  return m;
}

Model nemotron_super() {
  Model m = nemotron(
      "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
      128, 5376);
  m.experts = 512;
  m.top_k = 22;
  m.latent = 1024;
  m.predicts = 2;
  return m;
}

Model vit(std::int64_t patch) {
  return {.family = Family::kVit, .sequence = 0, .vocab = 0, .patch = patch, .dropout = false};
}

Model small_llama() {
  Model m = llama(128256, 8192);
  m.tied = true;
  return m;
}

const std::vector<Series>& series() {
  static const std::vector<Series> kAll = {
      {decoder(50257, 1024),
       {{"gpt2", 12, 768, 12},
        {"gpt2small", 12, 768, 12},
        {"gpt2medium", 24, 1024, 16},
        {"gpt2large", 36, 1280, 20},
        {"gpt2xl", 48, 1600, 25}}},
      {decoder(50257, 2048),
       {{"gpt3", 96, 12288, 96},
        {"gpt3125m", 12, 768, 12},
        {"gpt3350m", 24, 1024, 16},
        {"gpt3760m", 24, 1536, 16},
        {"gpt313b", 40, 5120, 40},
        {"gpt31.3b", 24, 2048, 16},
        {"gpt32.7b", 32, 2560, 32},
        {"gpt36.7b", 32, 4096, 32},
        {"gpt3175b", 96, 12288, 96}}},
      {decoder(50272, 2048),
       {{"opt125m", 12, 768, 12},
        {"opt350m", 24, 1024, 16},
        {"opt1.3b", 24, 2048, 32},
        {"opt2.7b", 32, 2560, 32},
        {"opt6.7b", 32, 4096, 32},
        {"opt13b", 40, 5120, 40},
        {"opt30b", 48, 7168, 56},
        {"opt66b", 64, 9216, 72},
        {"opt175b", 96, 12288, 96}}},
      {decoder(250880, 2048),
       {{"bloom", 70, 14336, 112},
        {"bloom560m", 24, 1024, 16},
        {"bloom1b1", 24, 1536, 16},
        {"bloom1b7", 24, 2048, 16},
        {"bloom3b", 30, 2560, 32},
        {"bloom7b1", 30, 4096, 32},
        {"bloom176b", 70, 14336, 112}}},
      {llama(32000, 2048),
       {{"llama17b", 32, 4096, 32, 32, 11008},
        {"llama7b", 32, 4096, 32, 32, 11008},
        {"llama113b", 40, 5120, 40, 40, 13824},
        {"llama13b", 40, 5120, 40, 40, 13824},
        {"llama30b", 60, 6656, 52, 52, 17920},
        {"llama33b", 60, 6656, 52, 52, 17920},
        {"llama65b", 80, 8192, 64, 64, 22016}}},
      {llama(32000, 4096),
       {{"llama2", 32, 4096, 32, 32, 11008},
        {"llama27b", 32, 4096, 32, 32, 11008},
        {"llama213b", 40, 5120, 40, 40, 13824},
        {"llama270b", 80, 8192, 64, 8, 28672}}},
      {llama(128256, 8192),
       {{"llama3", 32, 4096, 32, 8, 14336},
        {"llama38b", 32, 4096, 32, 8, 14336},
        {"llama8b", 32, 4096, 32, 8, 14336},
        {"llama3.18b", 32, 4096, 32, 8, 14336},
        {"llama370b", 80, 8192, 64, 8, 28672},
        {"llama70b", 80, 8192, 64, 8, 28672},
        {"llama3.170b", 80, 8192, 64, 8, 28672},
        {"llama3405b", 126, 16384, 128, 8, 53248},
        {"llama405b", 126, 16384, 128, 8, 53248},
        {"llama3.1405b", 126, 16384, 128, 8, 53248}}},
      {small_llama(),
       {{"llama3.21b", 16, 2048, 32, 8, 8192},
        {"llama1b", 16, 2048, 32, 8, 8192},
        {"llama3.23b", 28, 3072, 24, 8, 8192},
        {"llama3b", 28, 3072, 24, 8, 8192}}},
      {llama(32000, 8192),
       {{"mistral", 32, 4096, 32, 8, 14336}, {"mistral7b", 32, 4096, 32, 8, 14336}}},
      {mixtral(),
       {{"mixtral", 32, 4096, 32, 8, 14336},
        {"mixtral8x7b", 32, 4096, 32, 8, 14336},
        {"mixtral8x22b", 56, 6144, 48, 8, 16384}}},
      {experts(llama(151936, 4096), 128, 8, 128),
       {{"qwen330ba3b", 48, 2048, 32, 4, 768}, {"qwen3235ba22b", 94, 4096, 64, 4, 1536}}},
      {gpt_oss(128), {{"gptoss120b", 36, 2880, 64, 8, 2880}}},
      {gpt_oss(32), {{"gptoss20b", 24, 2880, 64, 8, 2880}}},
      {deepseek(1), {{"deepseekv3", 61, 7168, 128, 128, 2048}}},
      {compressed(163840, 384, 1), {{"kimik2", 61, 7168, 64, 64, 2048}}},
      {nemotron_nano(), {{"nemotron3nano", 52, 2688, 32, 2, 1856}}},
      {nemotron_super(), {{"nemotron3super", 88, 4096, 32, 2, 2688}}},
      {{.family = Family::kBert, .sequence = 128, .vocab = 30522},
       {{"bertbase", 12, 768, 12}, {"bertlarge", 24, 1024, 16}}},
      {vit(16),
       {{"vits16", 12, 384, 6},
        {"vitsmall", 12, 384, 6},
        {"vitb16", 12, 768, 12},
        {"vitbase", 12, 768, 12},
        {"vitl16", 24, 1024, 16},
        {"vitlarge", 24, 1024, 16}}},
      {vit(32), {{"vitb32", 12, 768, 12}, {"vitl32", 24, 1024, 16}}},
      {vit(14), {{"vith14", 32, 1280, 16}, {"vithuge", 32, 1280, 16}}},
  };
  return kAll;
}

// Lower case, without "-", "_", "/" and blanks.
std::string key_of(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != '-' && c != '_' && c != ' ' && c != '/')
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

}  // namespace

std::optional<Model> known_model(std::string_view name) {
  const std::string key = key_of(name);
  for (const Series& one : series()) {
    for (const Member& member : one.members) {
      if (key != member.name) continue;
      Model m = one.like;
      m.layers = member.layers;
      m.hidden = member.hidden;
      m.heads = member.heads;
      m.kv_heads = member.kv_heads;
      m.ffn = member.ffn;
      return m;
    }
  }
  return std::nullopt;
}

}  // namespace weft::plan
