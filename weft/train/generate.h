// Text from a trained model: what `weft generate` prints.
//
//   folder ─ model, tokenizer
//   prompt ─ tokens ─ logits of the last ─ distribution() ─ a draw ─> a token ─┬─> text
//                  ^                                                           │
//                  └──── keys and values of all before (models/gpt.h) ─────────┘
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/parallel/tensor/context.h"

namespace weft::train {

struct GenerateOptions {
  std::string prompt;         // Text to continue. Empty: the start of a document.
  std::int64_t tokens = 200;  // Most tokens. A model that ends the document ends earlier.
  double temperature = 0.8;   // Divides the logits. 0: always the most likely token.
  std::int64_t top_k = 0;     // Draw from this many most likely tokens only. 0: from all.
  // Draw from the fewest most likely tokens that together have this probability. 1: from all.
  double top_p = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> stop;  // The first of these texts ends the text. It is not printed.
};

// Probabilities from which the next token is drawn. Takes logits [vocabulary]. Applies temperature
// (above 0), then top_k, then top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020, 3.1), each to what the one before has left.
at::Tensor distribution(const at::Tensor& logits, const GenerateOptions& options);

// Continues the prompt; `piece` gets the new text as it comes. `folder` is a text run, whose newest
// checkpoint is used, or a folder with the config.json, weights and tokenizer.json of a GPT-2 or
// Llama in Hugging Face's format (models/huggingface.h). The model sees the last model.sequence
// tokens (n_positions, max_position_embeddings). While all of the text fits in there, a token costs
// the computation of one position. After that, all positions change with each token and are
// computed again. An LSTM has seen all of the text; a token always costs one position.
//
// The layers are split over the ranks of `tp`, which all get the same text. Collective. Only tokens
// of the tokenizer are drawn, also where the model's vocabulary is padded beyond them.
// Throws Error(kInvalidArgument) for a folder that holds neither or no checkpoint yet, an LSTM over
// several ranks, and options out of range, and as read_huggingface_config() and load_tokenizer().
// Throws Error(kCorrupt), naming a weight, for a model that gives NaN.
void generate(const std::string& folder, const GenerateOptions& options,
              const std::function<void(std::string_view)>& piece,
              const parallel::TensorParallel& tp = {});

}  // namespace weft::train
