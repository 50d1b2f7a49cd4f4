// What training on text and generating it share: the model and tokenizer that a configuration means, and whole tensors of split ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/data/text/tokenizer.h"
#include "weft/models/gpt.h"
#include "weft/train/internal/run_state.h"

namespace weft::train::internal {

// Throws Error(kBadConfig) in the recipe's words for sizes that make no model.
models::GptOptions gpt_options(const Config& config, std::int64_t vocabulary);

// The files that data.file names: itself, or those of the folder by name, links left out. Throws Error(kBadConfig) where there are none.
std::vector<std::string> text_files(const Config& config);

// What data.tokenizer means as the text of a tokenizer.json: that of the file, or learned from the files for "bpe:4096"; empty for "bytes".
// Throws Error(kBadConfig).
std::string tokenizer_text(const Config& config, const std::vector<std::string>& files);
// Of such a text.
std::unique_ptr<data::text::Tokenizer> make_tokenizer(const std::string& json);
// What ends a document: the token <|endoftext|>, else </s>, else none.
std::string end_token(const data::text::Tokenizer& tokenizer);

// The model's parameters and buffers by name, whole. Collective over the model's ranks.
checkpoint::TensorMap whole_tensors(const models::GptImpl& model);
// Each rank keeps its part. Throws Error(kInvalidArgument) naming the first tensor that is missing or has another shape.
void set_whole_tensors(models::GptImpl& model, const checkpoint::TensorMap& whole);
// The same for an optimiser's state: what is shaped like a parameter is split like it. Collective over the model's ranks.
NamedTensors whole_state(const models::GptImpl& model, const NamedTensors& state);
NamedTensors part_of_state(const models::GptImpl& model, const checkpoint::TensorMap& whole);

// The likeliest token at each position of this rank's logits: int64, logits' shape without the last. Collective over tp, the same on all of
// its ranks.
at::Tensor likeliest(const at::Tensor& logits, std::int64_t vocabulary, const parallel::TensorParallel& tp);

}  // namespace weft::train::internal
