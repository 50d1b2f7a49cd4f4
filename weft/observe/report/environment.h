// The machine of a run, for its report.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace weft::observe {

// One JSON object: time, host, processor, cores and memory of this machine, then `more` as it is given.
std::string environment_json(const std::vector<std::pair<std::string, std::string>>& more);

}  // namespace weft::observe
