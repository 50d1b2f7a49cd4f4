// Text from a trained model: what `weft generate` prints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace weft::train {

struct GenerateOptions {
  std::string prompt;         // empty: as at the start of a document
  std::int64_t tokens = 200;  // at most; a model that ends the document ends earlier
  double temperature = 0.8;   // 0: always the likeliest token
  std::int64_t top_k = 0;     // of the likeliest tokens only; 0: of all
  std::uint64_t seed = 1;
};

// Continues the prompt by the newest checkpoint of a text run (its folder); `piece` gets the new text as it comes. Each token is drawn from
// softmax(logits / temperature) over the last model.sequence tokens. Throws Error(kInvalidArgument) for a folder that holds no text run or
// no checkpoint yet, and options out of range.
void generate(const std::string& run, const GenerateOptions& options, const std::function<void(std::string_view)>& piece);

}  // namespace weft::train
