// Reads and writes models of Hugging Face's transformers (GPT2LMHeadModel, LlamaForCausalLM,
// MixtralForCausalLM): a folder with config.json and safetensors files. The GPT may be divided over
// ranks in any way.
//
// GPT-2 keeps the weights of its linear layers transposed ([in, out], "Conv1D"), and q, k, v in one
// tensor (c_attn). Llama's layout is weft's. Rotary positions rotate halves in both Llama and weft.
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

// Returns the family that the model's options fit. GPT-2: learned positions, LayerNorm, biases, no
// gate. Llama and, with experts, Mixtral: rotary positions, RMSNorm, SwiGLU, no biases. Throws
// Error(kInvalidArgument) for mixtures of both.
HuggingFace huggingface_family(const GptOptions& options);

// Contents of a config.json.
struct HuggingFaceConfig {
  GptOptions options;                 // Options of the model, with dropout 0.
  std::optional<std::int64_t> begin;  // Token before a text (bos_token_id).
  std::vector<std::int64_t> ends;     // Tokens that end a text (eos_token_id).
};

// Reads a folder's config.json: model_type "gpt2", "llama" or "mixtral" (with rope_scaling of type
// llama3, tied embeddings, head_dim, attention_bias).
// Throws Error(kBadConfig), naming file and key, for another model_type, for a value of the wrong
// kind, and for an unsupported option that would change the results. Throws Error(kCorrupt)
// for text that is not JSON, and Error(kInvalidArgument) if there is no such file.
HuggingFaceConfig read_huggingface_config(const std::string& folder);
// As read_huggingface_config(), for the text of a config.json. Messages have `name` for the file.
HuggingFaceConfig parse_huggingface_config(const std::string& text, const std::string& name);
// Returns the text of a config.json from which transformers makes this model. Throws as
// huggingface_family().
std::string huggingface_config(const HuggingFaceConfig& config);
// Returns the weight files of a folder: model.safetensors, or the files that
// model.safetensors.index.json names. Throws Error(kInvalidArgument) if there is neither, or if
// the index names a file that is not there. Throws Error(kCorrupt) for an index that names no file
// or a file outside the folder.
std::vector<std::string> huggingface_files(const std::string& folder);

// Sets the model's weights; each rank keeps its slices and its experts. Names may lack the
// outermost "transformer." or "model.". Masks and rotary tables of older files are skipped, and so
// is a head's weight if the model's head is tied. Not collective. Throws Error(kInvalidArgument),
// naming a tensor that is missing, has another shape, has no place in the model, or holds no
// floating-point numbers (quantized weights); the model is then unchanged.
void set_huggingface(GptImpl& model, const checkpoint::TensorMap& tensors);
// As set_huggingface(), from safetensors files (a model may have several). Each rank reads only its
// slices and its experts.
void load_huggingface(GptImpl& model, const std::vector<std::string>& paths);

// As load_huggingface(), for a model that is divided over ranks (ParallelModel::load_weights).
// Slices have the parameter names of a GPT on one rank. Each rank reads only the data of its
// slices. Throws as load_huggingface() for files that are not weights of such a model.
std::unique_ptr<checkpoint::SliceSource> huggingface_source(const GptOptions& options,
                                                            const std::vector<std::string>& paths);

// Returns the model's whole weights, by Hugging Face's names, on every rank, for
// checkpoint::save_safetensors() on one rank. Some may share the model's memory. Collective.
checkpoint::TensorMap get_huggingface(const GptImpl& model);

}  // namespace weft::models
