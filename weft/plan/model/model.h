// Model: the shape of a neural network, as far as the planner needs it.
//
//   const Model m = default_model("llama");          // the shape of Llama 3 8B
//   const double psi = parameters(m);
//
// A Model is a value. Families and their names (case, "-", "_" and blanks do not matter):
//
//   gpt        decoder with LayerNorm, learned positions, GELU, tied embedding (GPT-2, GPT-3)
//   llama      decoder with RMSNorm, rotary positions, SwiGLU, grouped queries
//   moe        decoder as gpt, in which every expert_interval-th MLP is a mixture of experts
//   bert       encoder with a masked-language-model head
//   vit        Vision Transformer
//   resnet18, 34, 50, 101, 152; vgg16, vgg19; wresnet (wider 3x3 convolutions); cnn (two
//   convolutions, two linear layers); amoebanet (AmoebaNet-D of GPipe); unet (U-Net of torchgpipe)
//   measured   the blocks of a profile (profile.h)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::plan {

enum class Family : std::uint8_t {
  kGpt,
  kLlama,
  kMoe,
  kBert,
  kVit,
  kResnet,
  kWideResnet,
  kCnn,
  kAmoebaNet,
  kUnet,
  kVgg,
  kMeasured
};

struct Profile;  // profile.h

struct Model {
  Family family = Family::kGpt;
  std::int64_t layers = 12;  // Blocks of a transformer; layers of a ResNet (50 for ResNet-50).
  std::int64_t sequence = 1024;
  std::int64_t hidden = 768;
  std::int64_t ffn = 0;         // Width of the MLP. 0: default_ffn().
  std::int64_t heads = 0;       // 0: default_heads().
  std::int64_t kv_heads = 0;    // Key and value heads. 0: as many as heads.
  std::int64_t head_width = 0;  // Features of a head. 0: hidden / heads.
  std::int64_t vocab = 51200;
  std::int64_t experts = 0;          // Experts of a mixture; 0: none.
  std::int64_t top_k = 1;            // Experts of a token.
  std::int64_t expert_interval = 1;  // Every n-th block has experts.
  std::int64_t dense_layers = 0;     // First blocks, which have no experts.
  std::int64_t dense_ffn = 0;        // Width of their MLP. 0: ffn.
  std::int64_t shared_ffn = 0;       // Width of the expert that all tokens pass. 0: none.
  std::int64_t latent = 0;           // Features in which experts compute (LatentMoE). 0: hidden.
  // Experts have biases and clamp their activation (GPT OSS).
  bool expert_bias = false;
  bool gated = true;  // MLPs of llama: SwiGLU. False: two matrices, squared ReLU.
  // Multi-head latent attention (DeepSeek-V2, 2024): ranks of the compressed queries, keys and
  // values, and features of a head with rotary positions besides head_width. 0: ordinary attention.
  std::int64_t query_rank = 0, kv_rank = 0, rotary_width = 0;
  std::int64_t window = 0;    // Keys that every second block sees. 0: all blocks see all keys.
  std::int64_t predicts = 0;  // Further blocks that predict tokens ahead (multi-token prediction).
  // Kind of each layer (Nemotron-H): M Mamba-2, * attention, - MLP, E mixture. Empty: all alike.
  std::string pattern;
  // Mamba-2: features of a state, heads, features of a head, groups.
  std::int64_t state = 128, state_heads = 0, state_head_width = 64, state_groups = 8;
  std::int64_t adapter = 0;   // Rank of LoRA's adapters of frozen weights. 0: none.
  std::int64_t image = 224;   // Side of the image.
  std::int64_t channels = 3;  // Channels of the image.
  std::int64_t patch = 16;    // Side of a patch (vit).
  std::int64_t classes = 1000;
  std::int64_t base = 64;       // Filters of the first stage (convolutions).
  std::int64_t factor = 1;      // Factor of the width of 3x3 convolutions (wresnet).
  std::int64_t convs = 5;       // Convolutions of a level (unet).
  std::int64_t predicted = 20;  // Positions of a sample whose token is predicted (bert).
  bool tied = true;             // Token embedding and output layer share their weights.
  bool dropout = true;          // Dropout in training.
  bool small_stem = false;      // First convolution 3x3 with stride 1 (resnet on small images).
  // Number of parameters, if that is all that is known. Such a model has memory but no time.
  double only_parameters = 0;
  // Measured times of its blocks. nullptr: none.
  std::shared_ptr<const Profile> profile;
  bool operator==(const Model&) const = default;
};

// Shape of a family's best-known member: GPT-2 small, Llama 3 8B, BERT base, ViT-B/16, ResNet-50
// and so on. Throws Error(kInvalidArgument), naming the nearest family or all of them.
Model default_model(std::string_view family);
// A well-known model by its name, such as "GPT-2 XL", "llama-2-70b", "mixtral 8x7b", "bert-large",
// "ViT-L/16". nullopt: not in the table (members.cc).
std::optional<Model> known_model(std::string_view name);
// True for the name of a family. False for other names that default_model() takes, such as
// "megatron" for gpt.
bool is_family(std::string_view name);
const char* to_string(Family family);
// Names of all families, as default_model() takes them.
std::vector<std::string> families();

// True if the model is a list of transformer blocks.
bool is_transformer(const Model& model);
// True if its samples are images: throughput in samples, no tokens.
bool has_images(const Model& model);

// Width of the MLP: 4 hidden; for llama 8/3 hidden, rounded up to a multiple of 256.
std::int64_t default_ffn(const Model& model);
// Up to 1600 features: heads of 64, as in GPT-2, BERT and ViT. Beyond, heads of 128 features where
// these divide hidden into a multiple of 8 heads, as in GPT-3's larger models. Else of 64 features,
// if these do. Else 96 heads (GPT-3), 80, 64, … whichever first divides hidden.
std::int64_t default_heads(const Model& model);

// The model with zeros (ffn, heads, kv_heads, head_width) replaced by their defaults. Throws
// Error(kInvalidArgument), naming the field, for sizes below 1 or beyond 1e9, heads that do not
// divide hidden, and key and value heads that do not divide heads.
Model complete(Model model);

// Number of parameters.
double parameters(const Model& model);
// Share of the parameters that are trained: 1, or that of LoRA's adapters.
double trained_share(const Model& model);
// Positions of a sample that a transformer computes with: tokens, or patches and the class token.
std::int64_t positions(const Model& model);
// Floating-point operations of forward and backward for one sample, without recomputation: the
// numerator of MFU. Transformers: 72 s l h^2 (1 + s/(6h) + V/(12lh)) for gpt (Korthikanti et al.
// 2022), else the sum over the model's matrix products, with attention counted in full. Backward
// counts twice the forward.
double model_flops(const Model& model);

}  // namespace weft::plan
