// A model with its tokenizer, from a text run or a Hugging Face folder: to generate from, or to
// write for others.
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
  std::unique_ptr<Reader> reader;  // of the model
  models::Gpt gpt{nullptr};        // the model; null: it is an LSTM
  std::unique_ptr<data::text::Tokenizer> tokenizer;
  std::string json;                 // tokenizer.json; empty: bytes
  std::vector<std::int64_t> begin;  // tokens before every text
  std::int64_t start = 0;  // the token to begin with where there is no text and `begin` is empty
  std::vector<std::int64_t> ends;  // tokens that end a text
};

// Of either kind of folder. Throws as generate().
TextModel load_text_model(const std::string& folder, const parallel::TensorParallel& tp);
// Of a text run: its newest checkpoint.
TextModel load_run(const std::string& folder, const parallel::TensorParallel& tp);

// The special token that tokenizer.json's post_processor puts before a text ("<|begin_of_text|>" of
// Llama 3); empty where there is none.
std::string begin_token(const std::string& json);

}  // namespace weft::train::internal
