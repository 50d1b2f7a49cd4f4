// Where a system's cost table is kept, and that it is this system's.
#pragma once

#include <string>

#include "weft/plan/cost.h"

namespace weft::plan {

// This machine, for people and as a key: "AMD EPYC 9B14, 2 processors". Equal machines of a cluster
// share it, and a home folder's cache.
std::string machine_identity();

// WEFT_CALIBRATION, else weft/calibration-<key of machine_identity()>.txt in XDG_CACHE_HOME or
// ~/.cache. Empty where there is no such folder (neither variable nor HOME is set).
std::string calibration_path();

// The table that save_table() left for this machine; the defaults where there is none. A file that
// is damaged, of another machine or of another version is not used: one warning says so, and what
// to do. Never throws for what a file holds or lacks. Only rank 0 of a group calls it (choice.h
// says how the others get it).
CostTable load_table();

// Writes it to calibration_path(), whole or not at all, and returns the path. Throws
// Error(kUnavailable) where there is no such folder, and what write_file_atomic() throws.
std::string save_table(const CostTable& table);

}  // namespace weft::plan
