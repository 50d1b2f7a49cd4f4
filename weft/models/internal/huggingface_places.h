// Where a GPT's parameters are among Hugging Face's tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/models/gpt.h"

namespace weft::models::internal {

// One of our parameters, and where it is among theirs.
struct Place {
  std::string ours, theirs;
  bool transposed = false;
  int third = -1;            // of c_attn's outputs: q, k, v; -1: the whole tensor
  std::int64_t expert = -1;  // ours is this one of the stack of all experts; -1: no stack
};

// Of the whole model, ours by the names of one process's GPT. Throws as huggingface_family().
std::vector<Place> places_of(const GptOptions& options);
// Tensors of theirs that hold nothing of the model.
bool passed_over(const std::string& name, const GptOptions& options);
// The name that is there: the full one or the one without the outermost module's. Throws
// Error(kInvalidArgument) where neither is.
std::string find(const std::map<std::string, std::vector<std::int64_t>>& sizes,
                 const std::string& name);

}  // namespace weft::models::internal
