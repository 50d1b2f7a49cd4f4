// A program can lose what it writes to its standard output, if the disk is full or the reader of a
// pipe has ended.
#pragma once

#include <optional>

#include "weft/base/error.h"

namespace weft {

// Writes out what is buffered for standard output. Returns kUnavailable with the reason if any
// output of this process was lost. Call it last.
std::optional<Error> lost_output();

}  // namespace weft
