// A trained model for others to use: what `weft export` writes.
#pragma once

#include <string>

namespace weft::train {

// Writes the model of a text run's newest checkpoint as a folder that Hugging Face's transformers
// loads: model.safetensors, tokenizer.json, tokenizer_config.json, and config.json last. Throws
// Error(kInvalidArgument) for a folder that holds no text run, an LSTM's, or no checkpoint yet, or
// an output that holds a config.json already; what writing files throws (base/file.h).
void export_huggingface(const std::string& run, const std::string& output);

}  // namespace weft::train
