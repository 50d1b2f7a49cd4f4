// Finds the plug-in of the MPI that started this process, and loads it.
#pragma once

#include <string>
#include <vector>

#include "weft/net/mpi/internal/abi.h"

namespace weft::net::mpi::internal {

// "libweft_mpi_openmpi.so".
std::string plugin_name(const std::string& implementation);

// Candidate paths of a plug-in for a program (or library) at `self`: `given`, if it is not empty;
// the folder of `self`; lib/weft below each folder above it; last the plain name, for the dynamic
// linker.
std::vector<std::string> plugin_paths(const std::string& implementation, const std::string& self,
                                      const std::string& given);

// Throws kBadConfig with one reason: the process was not started by an MPI; only another MPI's
// plug-in exists; there is no plug-in; it cannot be loaded.
const Table& load_plugin();

}  // namespace weft::net::mpi::internal
