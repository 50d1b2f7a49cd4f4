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
  std::string prompt;         // empty: as at the start of a document
  std::int64_t tokens = 200;  // at most; a model that ends the document ends earlier
  double temperature = 0.8;   // 0: always the likeliest token
  std::int64_t top_k = 0;     // of the likeliest tokens only; 0: of all
  double top_p =
      1;  // of the fewest likeliest tokens that together have this probability; 1: of all
  std::uint64_t seed = 1;
  std::vector<std::string> stop;  // texts: the first to come ends the text, and is not part of it
};

// The probabilities that the next token is drawn from, of logits [vocabulary]: of logits /
// temperature, then top_k, then top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020, 3.1), each of what the one before has left. Temperature above 0.
at::Tensor distribution(const at::Tensor& logits, const GenerateOptions& options);

// Continues the prompt; `piece` gets the new text as it comes. `folder` is a text run, of which the
// newest checkpoint is taken, or has the config.json, weights and tokenizer.json of a GPT-2 or
// Llama as Hugging Face keeps them (models/huggingface.h). The model sees the last model.sequence
// tokens (n_positions, max_position_embeddings). While all of the text fits in there, a token costs
// one position's computation; after that all positions change with each token and are computed
// again. An LSTM has seen all of the text, and a token costs one position's computation always.
//
// The model's layers are split over `tp`'s ranks; collective, and all of them get the same text.
// Only tokens of the tokenizer are drawn, also where the model's vocabulary is padded beyond them.
// Throws Error(kInvalidArgument) for a folder that holds neither or no checkpoint yet, an LSTM over
// several ranks, and options out of range, and as read_huggingface_config() and load_tokenizer().
// Throws Error(kCorrupt), naming a weight, for a model that gives NaN.
void generate(const std::string& folder, const GenerateOptions& options,
              const std::function<void(std::string_view)>& piece,
              const parallel::TensorParallel& tp = {});

}  // namespace weft::train
