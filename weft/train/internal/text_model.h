// Loads a model and its tokenizer from a text run or a Hugging Face folder, for generation or
// export.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/data/text/tokenizer.h"
#include "weft/models/gpt.h"
#include "weft/train/internal/reader.h"

namespace weft::train::internal {

struct TextModel {
  std::unique_ptr<Reader> reader;  // reads with the model below
  models::Gpt gpt{nullptr};        // null if the model is an LSTM
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<data::text::Tokenizer> tokenizer;
  std::string json;                 // contents of tokenizer.json; empty: bytes
  std::vector<std::int64_t> begin;  // tokens before every text
  std::int64_t start = 0;           // first token if both the text and `begin` are empty
  std::vector<std::int64_t> ends;   // tokens that end a text
};

// Loads from either kind of folder. Throws the same errors as generate().
TextModel load_text_model(const std::string& folder, const parallel::TensorParallel& tp);
// Loads the newest checkpoint of a text run.
TextModel load_run(const std::string& folder, const parallel::TensorParallel& tp);

// The special token that tokenizer.json's post_processor puts before a text ("<|begin_of_text|>" of
// Llama 3); empty if there is none.
std::string begin_token(const std::string& json);

}  // namespace weft::train::internal
