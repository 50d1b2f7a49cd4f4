// Data that a group keeps for regroup().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/comm/backend.h"

namespace weft::comm {

class Group;
struct RegroupOptions;

namespace internal {

struct RegroupData {
  c10::intrusive_ptr<c10d::Store> store;  // the same for all epochs; null if there is none
  BackendOptions options;                 // with the epoch of the current group
  std::vector<std::string> names;         // by rank; a process keeps its name through all epochs
  // By rank: its rank in the previous group, -1 for a newcomer. Empty in the first group.
  std::vector<int> former;
  bool through_mpi = false;  // the ranks met without a store
  int job_rank = -1;         // this process's rank by the launcher; -1: any
};

// form_group() of ranks that meet at `place`, a store of their own, where the keys of an earlier
// meeting are still in `store`. regroup() and newcomers use `store`. Rank 0 leaves the texts of the
// job in both.
Group form_group_at(const c10::intrusive_ptr<c10d::Store>& place,
                    c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    const BackendOptions& options);
// Group::regroup().
Group regroup(const Group& group, const RegroupData& regroup_data, const RegroupOptions& options);

}  // namespace internal
}  // namespace weft::comm
