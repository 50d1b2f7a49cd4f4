// Weights under the names that Hugging Face's transformers give them (GPT2LMHeadModel, LlamaForCausalLM), into a GPT of any split and out
// of it.
//
// GPT-2 keeps its linear layers' weights transposed ([in, out], "Conv1D") and q, k, v in one (c_attn); Llama's lie as ours. Both rotate by
// halves.
#pragma once

#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/models/gpt.h"

namespace weft::models {

enum class HuggingFace { kGpt2, kLlama };

// The family whose names the model's options fit: learned positions, LayerNorm, biases and no gate, or rotary positions, RMSNorm, SwiGLU
// and no biases. Throws Error(kInvalidArgument) for what lies between.
HuggingFace huggingface_family(const GptOptions& options);

// Gives the model these weights; each rank keeps its slices. Names may lack the outermost "transformer." or "model."; masks and
// rotary tables that older files hold are passed over, and a head's weight where the model's is tied. Not collective.
// Throws Error(kInvalidArgument) naming a tensor that is missing, of another shape, or that the model has no place for; nothing has changed
// then.
void set_huggingface(GptImpl& model, const checkpoint::TensorMap& tensors);
// The same, from safetensors files (a model may be cut into several). Each rank reads its slices only.
void load_huggingface(GptImpl& model, const std::vector<std::string>& paths);

// The model's weights, whole, under those names, on every rank; some may share the model's memory. Collective. For
// checkpoint::save_safetensors() on one of them.
checkpoint::TensorMap get_huggingface(const GptImpl& model);

}  // namespace weft::models
