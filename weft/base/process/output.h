// A program can lose what it writes to its standard output, if the disk is full or the reader of a
// pipe has ended.
#pragma once

#include <optional>

#include "weft/base/error.h"

namespace weft {

// Writes out what is buffered for standard output. Returns kUnavailable with the reason if any
// output of this process was lost. Call it last.
std::optional<Error> lost_output();

// From now on, a write to a pipe whose reader has ended fails, in place of ending this process. It
// keeps what SIGPIPE does if that was set before, and programs that this process executes are not
// affected.
void outlive_readers();

}  // namespace weft
