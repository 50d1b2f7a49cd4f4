#include "weft/plan/model/model.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/model/profile.h"

namespace weft::plan {
namespace {

struct Named {
  const char* name;  // Lower case, without "-", "_" and blanks.
  Model model;
};

// Shapes: GPT-2 small (Radford et al. 2019), Llama 3 8B (2024), GShard-like mixture of Alpa's
// benchmarks (Zheng et al. 2022), BERT base (Devlin et al. 2018), ViT-B/16 (Dosovitskiy et al.
// 2020), ResNets (He et al. 2015), VGG (Simonyan and Zisserman 2014), AmoebaNet-D and U-Net of
// GPipe and torchgpipe.
const std::vector<Named>& known() {
  static const std::vector<Named> kKnown = {
      {"gpt", {.vocab = 50257}},
      {"llama",
       {.family = Family::kLlama,
        .layers = 32,
        .sequence = 8192,
        .hidden = 4096,
        .ffn = 14336,
        .kv_heads = 8,
        .vocab = 128256,
        .tied = false,
        .dropout = false}},
      {"moe",
       {.family = Family::kMoe,
        .layers = 16,
        .hidden = 1024,
        .vocab = 32000,
        .experts = 16,
        .top_k = 2,
        .expert_interval = 2,
        .dropout = false}},
      {"bert", {.family = Family::kBert, .sequence = 128, .vocab = 30522}},
      {"vit", {.family = Family::kVit, .sequence = 0, .vocab = 0, .dropout = false}},
      {"resnet18", {.family = Family::kResnet, .layers = 18}},
      {"resnet34", {.family = Family::kResnet, .layers = 34}},
      {"resnet50", {.family = Family::kResnet, .layers = 50}},
      {"resnet101", {.family = Family::kResnet, .layers = 101}},
      {"resnet152", {.family = Family::kResnet, .layers = 152}},
      {"resnet", {.family = Family::kResnet, .layers = 50}},
      {"vgg16", {.family = Family::kVgg, .layers = 16}},
      {"vgg19", {.family = Family::kVgg, .layers = 19}},
      {"wresnet",
       {.family = Family::kWideResnet, .layers = 50, .classes = 1024, .base = 160, .factor = 2}},
      {"cnn",
       {.family = Family::kCnn,
        .layers = 2,
        .image = 28,
        .channels = 1,
        .classes = 10,
        .base = 32}},
      {"amoebanet", {.family = Family::kAmoebaNet, .layers = 18, .base = 256}},
      {"unet", {.family = Family::kUnet, .layers = 5, .image = 192, .classes = 1, .base = 64}},
  };
  return kKnown;
}

std::string lower_letters(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '-' && c != '_' && c != ' ' && c != '.')
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

// Other names of the same families.
std::string family_key(std::string_view family) {
  const std::string key = lower_letters(family);
  const auto starts = [&](const char* with) { return key.rfind(with, 0) == 0; };
  if (starts("gpt") || starts("megatron") || starts("bloom") || starts("opt")) return "gpt";
  if (starts("gshard") || starts("moe")) return "moe";
  if (starts("llama") || starts("mistral") || starts("mixtral") || starts("qwen")) return "llama";
  if (starts("bert")) return "bert";
  if (starts("vit") || starts("visiontransformer")) return "vit";
  if (starts("wideresnet") || starts("wresnet")) return "wresnet";
  if (starts("amoebanet")) return "amoebanet";
  if (starts("resnet50")) return "resnet50";
  if (starts("resnet101")) return "resnet101";
  return key;
}

constexpr double kMost = 1e9;

void check_positive(std::int64_t value, const char* name) {
  WEFT_REQUIRE(value >= 1 && static_cast<double>(value) <= kMost,
               "model." + std::string(name) + " is " + std::to_string(value) +
                   "; use a number from 1 to 1000000000");
}

void check_sizes(const Model& m) {
  check_positive(m.layers, "layers");
  if (is_transformer(m)) {
    check_positive(m.hidden, "hidden");
    if (m.family != Family::kVit) check_positive(m.sequence, "sequence");
    if (m.family != Family::kVit) check_positive(m.vocab, "vocab");
    WEFT_REQUIRE(m.ffn >= 0 && m.heads >= 0 && m.kv_heads >= 0 && m.head_width >= 0 &&
                     m.experts >= 0 && m.ffn <= 1'000'000'000 && m.heads <= 1'000'000 &&
                     m.experts <= 1'000'000,
                 "model: ffn, heads, kv_heads and experts must not be negative or absurd");
    WEFT_REQUIRE(m.layers <= 100'000 && m.hidden <= 10'000'000 && m.sequence <= 100'000'000,
                 "model: more than 100000 layers, 10000000 features or 100000000 positions");
  }
  if (has_images(m)) {
    check_positive(m.image, "image");
    check_positive(m.channels, "channels");
    check_positive(m.classes, "classes");
    WEFT_REQUIRE(m.image <= 16384 && m.base >= 1 && m.base <= 100'000 && m.factor >= 1 &&
                     m.factor <= 1000 && m.channels <= 1'000'000 && m.layers <= 10'000 &&
                     m.convs >= 1 && m.convs <= 1000,
                 "model: image, base, factor, channels, layers or convs out of range");
  }
}

double attention_parameters(const Model& m) {
  const double h = static_cast<double>(m.hidden), d = static_cast<double>(m.head_width);
  return h * d * static_cast<double>(2 * m.heads + 2 * m.kv_heads);
}

double mlp_parameters(const Model& m) {
  const double matrices = m.family == Family::kLlama ? 3 : 2;
  return matrices * static_cast<double>(m.hidden) * static_cast<double>(m.ffn);
}

// Biases and norms of one block.
double vectors_of_block(const Model& m) {
  const double h = static_cast<double>(m.hidden), f = static_cast<double>(m.ffn);
  if (m.family == Family::kLlama) return 2 * h;
  const double qkv = static_cast<double>(m.head_width * (m.heads + 2 * m.kv_heads));
  return qkv + h + f + h + 4 * h;
}

std::int64_t expert_blocks(const Model& m) {
  return m.experts > 0 ? m.layers / std::max<std::int64_t>(1, m.expert_interval) : 0;
}

double transformer_parameters(const Model& m) {
  const double h = static_cast<double>(m.hidden), l = static_cast<double>(m.layers);
  const double mixtures = static_cast<double>(expert_blocks(m)),
               experts = static_cast<double>(m.experts);
  double sum = l * (attention_parameters(m) + mlp_parameters(m) + vectors_of_block(m));
  sum += mixtures * ((experts - 1) * mlp_parameters(m) + experts * h);
  const double table = static_cast<double>(m.vocab) * h;
  switch (m.family) {
    case Family::kVit: {
      const double p = static_cast<double>(m.patch * m.patch * m.channels);
      return sum + (p + 1) * h + static_cast<double>(positions(m) + 1) * h + 2 * h +
             (h + 1) * static_cast<double>(m.classes);
    }
    case Family::kBert:  // embeddings with norm, pooler, transform, next-sentence head
      return sum + table + 514 * h + 2 * h + 2 * (h * h + h) + 2 * h +
             static_cast<double>(m.vocab) + 2 * h + 2;
    case Family::kLlama: return sum + (m.tied ? 1 : 2) * table + h;
    default: return sum + (m.tied ? 1 : 2) * table + static_cast<double>(m.sequence) * h + 2 * h;
  }
}

// True if the formulas above do not count its parameters: blocks_of() does.
bool has_parts(const Model& m) {
  return !m.pattern.empty() || m.kv_rank > 0 || m.shared_ffn > 0 || m.dense_layers > 0 ||
         m.latent > 0 || m.predicts > 0 || m.window > 0 || !m.gated;
}

}  // namespace

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const Named& one : known()) names.emplace_back(one.name);
  return names;
}

Model default_model(std::string_view family) {
  const std::string key = family_key(family);
  for (const Named& one : known()) {
    if (key == one.name) return one.model;
  }
  const auto near = nearest(key, families());
  throw Error(Errc::kInvalidArgument,
              "model.family \"" + std::string(family.substr(0, 40)) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use one of " + joined(families())));
}

bool is_family(std::string_view name) {
  const std::string key = family_key(name), letters = lower_letters(name);
  const bool known_key = std::any_of(known().begin(), known().end(),
                                     [&](const Named& one) { return key == one.name; });
  return known_key && (letters == key || letters == key + "d");  // AmoebaNet-D
}

const char* to_string(Family family) {
  switch (family) {
    case Family::kGpt: return "gpt";
    case Family::kLlama: return "llama";
    case Family::kMoe: return "moe";
    case Family::kBert: return "bert";
    case Family::kVit: return "vit";
    case Family::kResnet: return "resnet";
    case Family::kWideResnet: return "wresnet";
    case Family::kCnn: return "cnn";
    case Family::kAmoebaNet: return "amoebanet";
    case Family::kUnet: return "unet";
    case Family::kVgg: return "vgg";
    case Family::kMeasured: return "measured";
  }
  return "gpt";
}

bool is_transformer(const Model& model) {
  return model.family == Family::kGpt || model.family == Family::kLlama ||
         model.family == Family::kMoe || model.family == Family::kBert ||
         model.family == Family::kVit;
}

bool has_images(const Model& model) {
  if (model.family == Family::kMeasured) return model.profile->tokens == 0;
  return !is_transformer(model) || model.family == Family::kVit;
}

std::int64_t default_ffn(const Model& model) {
  if (model.family == Family::kMoe) return 8 * model.hidden;  // as in Alpa's benchmarks
  if (model.family != Family::kLlama) return 4 * model.hidden;
  return (8 * model.hidden / 3 + 255) / 256 * 256;
}

std::int64_t default_heads(const Model& model) {
  constexpr std::int64_t kWidestGpt2 = 1600;
  if (model.hidden <= kWidestGpt2 && model.hidden % 64 == 0) return model.hidden / 64;
  for (const std::int64_t width : {128, 64}) {
    if (model.hidden % (8 * width) == 0) return model.hidden / width;
  }
  for (const std::int64_t heads : {96, 80, 64, 48, 40, 32, 24, 16, 12, 8, 6, 4, 3, 2}) {
    if (model.hidden % heads == 0 && model.hidden / heads >= 32) return heads;
  }
  return 1;
}

Model complete(Model model) {
  WEFT_REQUIRE(model.family != Family::kMeasured || model.profile != nullptr,
               "a measured model needs a profile (weft plan profile)");
  check_sizes(model);
  if (!is_transformer(model)) return model;
  if (model.ffn == 0) model.ffn = default_ffn(model);
  if (model.heads == 0) model.heads = default_heads(model);
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_width == 0) {
    WEFT_REQUIRE(model.hidden % model.heads == 0,
                 "model.heads = " + std::to_string(model.heads) + " does not divide hidden = " +
                     std::to_string(model.hidden) + "; use heads that do, or give head_width");
    model.head_width = model.hidden / model.heads;
  }
  WEFT_REQUIRE(model.heads % model.kv_heads == 0,
               "model.kv_heads = " + std::to_string(model.kv_heads) +
                   " does not divide heads = " + std::to_string(model.heads));
  WEFT_REQUIRE(model.experts == 0 || (model.top_k >= 1 && model.top_k <= model.experts),
               "model.top_k = " + std::to_string(model.top_k) +
                   " must be from 1 to experts = " + std::to_string(model.experts));
  WEFT_REQUIRE(model.expert_interval >= 1, "model.expert_interval must be at least 1");
  if (!model.pattern.empty()) model.layers = static_cast<std::int64_t>(model.pattern.size());
  WEFT_REQUIRE(
      model.pattern.find_first_not_of("M*E-") == std::string::npos,
      "model.pattern \"" + model.pattern.substr(0, 40) + "\" must consist of M, *, E and -");
  WEFT_REQUIRE(model.pattern.find('M') == std::string::npos || model.state_heads >= 1,
               "model.pattern has Mamba layers; give state_heads");
  WEFT_REQUIRE(model.pattern.find('E') == std::string::npos || model.experts >= 1,
               "model.pattern has mixtures; give experts and top_k");
  if (model.family == Family::kVit) {
    check_positive(model.patch, "patch");
    WEFT_REQUIRE(model.image % model.patch == 0,
                 "model.patch = " + std::to_string(model.patch) +
                     " does not divide image = " + std::to_string(model.image));
  }
  return model;
}

std::int64_t positions(const Model& model) {
  if (model.family != Family::kVit) return model.sequence;
  const std::int64_t side = model.image / std::max<std::int64_t>(1, model.patch);
  return side * side + 1;
}

double parameters(const Model& model) {
  if (model.only_parameters > 0) return model.only_parameters;
  const Model m = complete(model);
  if (is_transformer(m) && !has_parts(m)) return transformer_parameters(m);
  double sum = 0;
  for (const auto& block : blocks_of(m, {.precision = Precision::kFp32}))
    sum += block->parameters + block->expert_parameters;
  return sum;
}

// Products of h x n with adapters of r features have r (h + n) further weights. Taken: n = h.
double trained_share(const Model& model) {
  if (model.adapter == 0) return 1;
  return std::min(1.0, 2.0 * static_cast<double>(model.adapter) /
                           static_cast<double>(std::max<std::int64_t>(1, model.hidden)));
}

double model_flops(const Model& model) {
  const Model m = complete(model);
  if (!is_transformer(m) || has_parts(m)) {
    Split split = {.precision = Precision::kFp32};
    split.software.flash = true;
    double sum = 0;
    for (const auto& block : blocks_of(m, split)) {
      for (const Operator& op : block->operators) sum += 3 * forward_flops(op);
    }
    return sum;
  }
  const double s = static_cast<double>(positions(m)), l = static_cast<double>(m.layers);
  const double mixtures = static_cast<double>(expert_blocks(m)), k = static_cast<double>(m.top_k);
  double active =
      l * (attention_parameters(m) + mlp_parameters(m)) + mixtures * (k - 1) * mlp_parameters(m);
  double head = static_cast<double>(m.vocab) * static_cast<double>(m.hidden) * s;
  if (m.family == Family::kVit)
    head = static_cast<double>(m.classes) * static_cast<double>(m.hidden);
  if (m.family == Family::kBert) head *= static_cast<double>(m.predicted) / s;
  return 6 * (s * active + head) + 12 * l * s * s * static_cast<double>(m.heads * m.head_width);
}

}  // namespace weft::plan
