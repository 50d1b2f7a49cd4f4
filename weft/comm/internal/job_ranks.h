// Errors of a subgroup name ranks by their number in the subgroup. A reader knows the ranks of the
// job, so the errors are translated before they leave the backend.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/base/error.h"

namespace weft::comm::internal {

// Replaces each "rank N" by "rank ranks[N]" and `suffix`. Leaves a rank alone if the suffix follows
// it already, or if it is not in `ranks`.
std::string rename_ranks(const std::string& text, std::span<const int> ranks,
                         const std::string& suffix);

// The same error with the ranks of the job: in its context, and in its message as "rank 5 of the
// job". `ranks` is by rank of the group. Empty: the numbers are those of the job already.
Error in_job_ranks(const Error& error, std::span<const int> ranks);

// The job's ranks of a part of a group: `part` has ranks of the group, `group` the group's in the
// job. Empty: the same numbers.
std::vector<int> ranks_in_job(std::span<const int> part, std::span<const int> group);

// The inverse: the group's ranks of some of the job's. Leaves out ranks that are not in the group.
std::vector<int> ranks_in_group(std::span<const int> job, std::span<const int> group);

}  // namespace weft::comm::internal
