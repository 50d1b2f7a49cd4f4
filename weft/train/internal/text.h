// Shared by training on text and text generation: creates model and tokenizer from a recipe,
// and loads parameters from a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/data/text/tokenizer.h"
#include "weft/models/gpt.h"
#include "weft/models/lstm.h"
#include "weft/parallel/compose/model.h"
#include "weft/train/internal/recipe_settings.h"

namespace weft::train::internal {

// The sizes of the recipe, or those of model.from, whose vocabulary may be larger than that of the
// tokenizer. Throws Error(kBadConfig), which names the keys of the recipe, for invalid sizes.
models::GptOptions gpt_options(const RecipeSettings& settings, std::int64_t vocabulary);
models::LstmOptions lstm_options(const ModelSettings& settings, std::int64_t vocabulary);

// The same model as a list of blocks.
parallel::BlockModel text_blocks(const RecipeSettings& settings, std::int64_t vocabulary,
                                 double targets_per_sample = 0);

// FLOPs of one token in forward and backward of a GPT: 6 N + 12 L H Q T (Chowdhery et al., "PaLM:
// Scaling Language Modeling with Pathways", 2022, appendix B). L, H, Q: layers, heads and their
// width. T: tokens of a sequence. N: weights of the matrices that a token is multiplied with. N
// includes the output layer and the router. It excludes embeddings, norms, biases, and experts that
// the token does not use.
double gpt_flops_per_token(models::GptOptions options);

// The contents of a tokenizer.json for data.tokenizer: read from the file, or trained on `files`
// for "bpe:4096"; empty for "bytes". Throws Error(kBadConfig).
std::string tokenizer_text(const RecipeSettings& settings, const std::vector<std::string>& files);
// Creates the tokenizer from these contents.
std::unique_ptr<data::text::Tokenizer> make_tokenizer(const std::string& json);
// The token that ends a document: <|endoftext|>, else </s>, else <|end_of_text|>, else "".
std::string end_token(const data::text::Tokenizer& tokenizer);

// Reads the model's parameters from a checkpoint's part "model"; each rank of tp reads only its
// slices. Throws Error(kInvalidArgument) naming the first tensor that is missing or has another
// shape.
void load_parameters(torch::nn::Module& model, const parallel::TensorParallel& tp,
                     const checkpoint::Reader& saved);
// The most likely token at each position: int64, shape of this rank's `logits` without the last
// dimension. Collective over tp; the result is the same on all of its ranks.
at::Tensor likeliest(const at::Tensor& logits, std::int64_t vocabulary,
                     const parallel::TensorParallel& tp);

}  // namespace weft::train::internal
