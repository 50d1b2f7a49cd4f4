// The model of a text recipe before its data is read.
#pragma once

#include <cstdint>

#include "weft/train/task.h"

namespace weft {
class Config;
}

namespace weft::train::internal {

// Tokens of the tokenizer: 257 for "bytes", 1024 for "bpe:1024"; `given` where it is above 0; else
// 50257.
std::int64_t vocabulary_of(const Config& config, std::int64_t given);

// The recipe's model, with tokens that are made up. It has no test data.
Task text_profile_task(const Config& config, std::int64_t vocabulary);

}  // namespace weft::train::internal
