// Saves and loads the cost table of this machine, and rejects tables of other machines.
#pragma once

#include <string>

#include "weft/plan/collectives/cost_table.h"

namespace weft::plan {

// Identity of this machine, for people and as a key: "AMD EPYC 9B14, 2 processors". Equal machines
// of a cluster have the same identity, and so share a table in a common home folder.
std::string machine_identity();

// Path of the table: WEFT_CALIBRATION, else weft/calibration-<key of machine_identity()>.txt in
// XDG_CACHE_HOME or ~/.cache. Empty if neither these variables nor HOME are set.
std::string calibration_path();

// Returns the table that save_table() wrote for this machine. If there is no file, returns the
// defaults, and warns only if WEFT_CALIBRATION is set. If the file is damaged, of another machine
// or of another version, returns the defaults and logs one warning with the remedy. Never throws
// because of what a file holds or lacks. Only rank 0 of a group calls it (choice.h says how the
// others get the table).
CostTable load_table();

// Writes the table to calibration_path() atomically and returns the path. Throws
// Error(kUnavailable) if calibration_path() is empty, and what make_directories() and
// write_file_atomic() throw.
std::string save_table(const CostTable& table);

}  // namespace weft::plan
