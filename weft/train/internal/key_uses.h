// The keys that apply only to some models, data sets, optimizers, schedules or strategies.
#pragma once

namespace weft {
class Config;
}

namespace weft::train::internal {

// Throws Error(kBadConfig), saying where it was set, for a key that the chosen model, data,
// optimizer, schedule or strategy does not use. Defaults pass. `config`: of a recipe, or of a
// program's options, which have neither model nor data.
void refuse_unused_keys(const Config& config);

}  // namespace weft::train::internal
