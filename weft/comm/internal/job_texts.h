// What all processes of a job must have alike: versions, the secret, and texts that the program
// gives, such as its configuration. Rank 0 leaves its own in the store. Another rank, or a
// newcomer, compares before it takes part in anything, so that a wrong one does not disturb the
// others.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <string>

#include "weft/base/deadline.h"
#include "weft/comm/backend.h"

namespace weft::comm::internal {

using JobTexts = std::map<std::string, std::string>;

// The texts of this process, with a digest in place of the secret.
JobTexts job_texts(const BackendOptions& options);

// The first difference in one sentence, in which `me` and `other` name the two. Empty if there is
// none. A pure function.
struct Names {
  std::string me, other;
};
std::string difference(const JobTexts& mine, const JobTexts& theirs, const Names& names);

// At the start of a group of `size` ranks. Throws kBadConfig if this rank differs from rank 0, and
// as an exchange over the store (meeting.h).
void compare_at_start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      const BackendOptions& options);
// As rank 0 does there.
void set_texts(c10d::Store& store, const BackendOptions& options);
// In place of a rank 0 that was lost before it had left its texts.
void leave_texts(c10d::Store& store, const BackendOptions& options);
// For a process that wants to join the ranks that met over `store`. Throws kBadConfig if it differs
// from them, and kTimeout if they leave no texts.
void compare_with_job(c10d::Store& store, const BackendOptions& options, Deadline deadline);

}  // namespace weft::comm::internal
