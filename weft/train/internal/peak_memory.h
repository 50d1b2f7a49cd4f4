// The largest memory that this process has held.
#pragma once

#include <string>

namespace weft::train::internal {

// Bytes of the largest resident set since the last forget_peak_memory(), or since the process
// began; shared memory that it has used counts. 0 if it cannot be read.
double peak_memory(const std::string& root = "/");
// Lets peak_memory() start again with what the process holds now. False where the system does not
// allow it; the peak then stays.
bool forget_peak_memory(const std::string& root = "/");

}  // namespace weft::train::internal
