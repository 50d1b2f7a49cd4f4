// Describes the machine of a run, for its report.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace weft::observe {

// Model of this machine's processor; "unknown" if the system does not tell.
std::string processor_name();

// One JSON object: time, host, processor, cores and memory of this machine, then the entries of
// `more`. An entry can replace one of these.
std::string environment_json(const std::vector<std::pair<std::string, std::string>>& more);

// Writes it to a file. The start time of a file that exists stays, since the run goes on. Throws
// what writing files throws (base/file.h).
void write_environment(const std::string& file,
                       std::vector<std::pair<std::string, std::string>> more);

}  // namespace weft::observe
