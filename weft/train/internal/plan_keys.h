// The keys of a recipe that a plan sets, and those that it does not go with.
#pragma once

#include <string>

namespace weft {
class Config;
}

namespace weft::train::internal {

// Throws Error(kBadConfig), saying where they were set, for keys that contradict
// parallel.plan = "auto" or "predict": axes that are set ("auto"), a batch per rank, a strategy
// other than sync, reproducible sums, a batch schedule, a device, verification. Also for the
// configuration of a program's options.
void check_plan_keys(const Config& config);

// Sets the keys of a fragment of a recipe (recipe_fragment()), except train.batch. The codec "auto"
// is replaced by the fragment's codec, or by "none".
void set_plan_keys(Config& config, const std::string& fragment, const std::string& origin);

}  // namespace weft::train::internal
