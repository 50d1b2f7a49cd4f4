// Sizes of a recipe's model before its data is read.
#pragma once

#include <cstdint>

namespace weft {
class Config;
}

namespace weft::train::internal {

// Tokens of the tokenizer: 257 for "bytes", 1024 for "bpe:1024"; `given` where it is above 0; else
// 50257.
std::int64_t vocabulary_of(const Config& config, std::int64_t given);

}  // namespace weft::train::internal
