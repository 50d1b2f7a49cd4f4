// Models as Hugging Face's transformers keep them (GPT2LMHeadModel, LlamaForCausalLM, MixtralForCausalLM): a folder with config.json and
// safetensors; their weights into a GPT of any split and out of it.
//
// GPT-2 keeps its linear layers' weights transposed ([in, out], "Conv1D") and q, k, v in one (c_attn); Llama's lie as ours. Both rotate by
// halves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/slice.h"
#include "weft/models/gpt.h"

namespace weft::models {

enum class HuggingFace { kGpt2, kLlama, kMixtral };

// The family whose names the model's options fit: learned positions, LayerNorm, biases and no gate, or rotary positions, RMSNorm, SwiGLU
// and no biases, perhaps with experts. Throws Error(kInvalidArgument) for what lies between.
HuggingFace huggingface_family(const GptOptions& options);

// What config.json says.
struct HuggingFaceConfig {
  GptOptions options;                 // dropout 0
  std::optional<std::int64_t> begin;  // bos_token_id
  std::vector<std::int64_t> ends;     // eos_token_id: any of them ends a text
};

// Reads a folder's config.json: model_type "gpt2", "llama" or "mixtral" (with rope_scaling of type llama3, tied embeddings, head_dim,
// attention_bias). Throws Error(kBadConfig) naming file and key for another model_type, an option that would change what the model computes
// and that weft does not have, or a value of the wrong kind, Error(kCorrupt) for what is not JSON, Error(kInvalidArgument) where there is
// no such file.
HuggingFaceConfig read_huggingface_config(const std::string& folder);
// The text of a config.json, from which transformers makes this model. Throws as huggingface_family().
std::string huggingface_config(const HuggingFaceConfig& config);
// The files of a folder's weights: model.safetensors, or those that model.safetensors.index.json names. Throws Error(kInvalidArgument)
// where there is neither, Error(kCorrupt) for an index that names none or leaves the folder.
std::vector<std::string> huggingface_files(const std::string& folder);

// Gives the model these weights; each rank keeps its slices and its experts. Names may lack the outermost "transformer." or "model."; masks
// and rotary tables that older files hold are passed over, and a head's weight where the model's is tied. Not collective. Throws
// Error(kInvalidArgument) naming a tensor that is missing, of another shape, or that the model has no place for; nothing has changed then.
void set_huggingface(GptImpl& model, const checkpoint::TensorMap& tensors);
// The same, from safetensors files (a model may be cut into several). Each rank reads its slices and its experts only.
void load_huggingface(GptImpl& model, const std::vector<std::string>& paths);

// The same, for a model that is divided over ranks (ParallelModel::load_weights): slices by the names of one process's GPT. Each rank reads
// what its slices need. Throws as load_huggingface() for files that are no weights of such a model.
std::unique_ptr<checkpoint::SliceSource> huggingface_source(const GptOptions& options, const std::vector<std::string>& paths);

// The model's weights, whole, under those names, on every rank; some may share the model's memory. Collective. For
// checkpoint::save_safetensors() on one of them.
checkpoint::TensorMap get_huggingface(const GptImpl& model);

}  // namespace weft::models
