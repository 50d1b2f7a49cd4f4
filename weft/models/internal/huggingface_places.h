// Maps the parameters of a GPT to the tensors of Hugging Face's checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/models/gpt.h"

namespace weft::models::internal {

// A parameter of weft ("ours") and the Hugging Face tensor that holds it ("theirs").
struct Place {
  std::string ours, theirs;
  bool transposed = false;
  int third = -1;            // Third of c_attn's outputs: 0 q, 1 k, 2 v. -1: the whole tensor.
  std::int64_t expert = -1;  // Index of the expert in our stacked parameter. -1: not stacked.
};

// Returns the places of all parameters, named as in a GPT on one rank. Throws as
// huggingface_family().
std::vector<Place> places_of(const GptOptions& options);
// True for a Hugging Face tensor that holds no parameter of the model, such as a causal mask.
bool passed_over(const std::string& name, const GptOptions& options);
// Throws Error(kInvalidArgument) for values that are no floating-point numbers, such as int8 of
// quantized weights: their scale is elsewhere.
void require_floating(const std::string& name, at::ScalarType type);
// Returns `name`, or the name without its first component ("transformer.", "model."), whichever
// `sizes` contains. Throws Error(kInvalidArgument) if it contains neither.
std::string find(const std::map<std::string, std::vector<std::int64_t>>& sizes,
                 const std::string& name);

}  // namespace weft::models::internal
