// The names of the values that weft itself writes to metrics.jsonl. All others are metrics of the
// task, or values that the program logs.
#pragma once

#include <string_view>

namespace weft::observe {

bool is_of_weft(std::string_view name);

}  // namespace weft::observe
