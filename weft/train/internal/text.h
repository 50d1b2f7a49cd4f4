// What training on text and generating it share: model and tokenizer of a configuration, and
// parameters from a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/checkpoint/reader.h"
#include "weft/data/text/tokenizer.h"
#include "weft/models/gpt.h"
#include "weft/models/lstm.h"
#include "weft/parallel/compose/model.h"

namespace weft::train::internal {

// Throws Error(kBadConfig) in the recipe's words for sizes that make no model.
models::GptOptions gpt_options(const Config& config, std::int64_t vocabulary);
models::LstmOptions lstm_options(const Config& config, std::int64_t vocabulary);

// That model as blocks.
parallel::BlockModel text_blocks(const Config& config, std::int64_t vocabulary);

// FLOPs of one token in forward and backward of a GPT: 6 N + 12 L H Q T (Chowdhery et al., "PaLM:
// Scaling Language Modeling with Pathways", 2022, appendix B). L, H, Q: layers, heads and their
// width. T: tokens of a sequence. N: weights of the matrices that a token is multiplied with, which
// includes the output layer and the router and leaves out look-ups, norms, biases, and experts that
// the token does not use.
double gpt_flops_per_token(models::GptOptions options);

// The files that data.file names: itself, or those of the folder by name, links left out. Throws
// Error(kBadConfig) where there are none.
std::vector<std::string> text_files(const Config& config);

// What data.tokenizer means as the text of a tokenizer.json: that of the file, or learned from the
// files for "bpe:4096"; empty for "bytes". Throws Error(kBadConfig).
std::string tokenizer_text(const Config& config, const std::vector<std::string>& files);
// Of such a text.
std::unique_ptr<data::text::Tokenizer> make_tokenizer(const std::string& json);
// What ends a document: the token <|endoftext|>, else </s>, else none.
std::string end_token(const data::text::Tokenizer& tokenizer);

// Reads the model's parameters from a checkpoint's part "model"; each rank of tp reads its slices
// alone. Throws Error(kInvalidArgument) naming the first tensor that is missing or has another
// shape.
void load_parameters(torch::nn::Module& model, const parallel::TensorParallel& tp,
                     const checkpoint::Reader& saved);
// The likeliest token at each position of this rank's logits: int64, logits' shape without the
// last. Collective over tp, the same on all of its ranks.
at::Tensor likeliest(const at::Tensor& logits, std::int64_t vocabulary,
                     const parallel::TensorParallel& tp);

}  // namespace weft::train::internal
