// Chooses the error that this rank reports when the operations of a group end together.
#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/internal/related_groups.h"

namespace weft::comm::internal {

// Any thread may call it.
class Causes {
 public:
  // `member`: null if no groups are related; outlives this. `job_ranks` as in BackendOptions.
  Causes(const RelatedGroups::Member* member, std::vector<int> job_ranks)
      : member_(member), job_ranks_(std::move(job_ranks)) {}

  // Returns the error to report instead of `why`, with ranks of the job and the name of the
  // operation, and records it for the launcher.
  std::exception_ptr of(std::exception_ptr why, std::string_view operation);
  // The wait for a message was too long. The group ends because of it.
  void note_timeout(const Error& late);

 private:
  // Returns the same error whichever operation ends first. For an aborted operation or a lost peer:
  // the kCorrupt or kInternal error of a related group, if any. For an aborted operation:
  // else the timeout of another operation of this rank, or an earlier loss of a peer.
  Error cause_of(const Error& error);

  const RelatedGroups::Member* const member_;
  const std::vector<int> job_ranks_;
  std::mutex mutex_;                // guards timed_out_
  std::optional<Error> timed_out_;  // the first timeout of an operation of this rank
};

}  // namespace weft::comm::internal
