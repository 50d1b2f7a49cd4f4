// Keys that have no effect beside the others: they are refused, or named in a warning.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/train/options.h"

namespace weft {
class Config;
}

namespace weft::train::internal {

// Throws Error(kBadConfig), saying where it was set, for a key that the chosen model, data,
// optimizer, schedule or strategy does not use (Key::used_by). Defaults pass. `config`: of
// a recipe, or of a program's options, which have neither model nor data.
void refuse_unused_keys(const Config& config);

// Lines for warnings about options that a program has set and that have no effect: unused keys as
// above, those of idle_keys(), and options without a key.
std::vector<std::string> idle_options(const Options& options);

// The line for a warning about train.copy_steps. None if the key is not set, or if the job
// recovers from the loss of a rank.
std::optional<std::string> idle_copies(const Config& config, bool recovers);

}  // namespace weft::train::internal
