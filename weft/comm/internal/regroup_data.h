// Data that a group keeps for regroup().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/backend.h"

namespace weft::comm {

class Group;
struct RegroupOptions;

namespace internal {

class WrittenKeys;  // rendezvous.h

struct RegroupData {
  c10::intrusive_ptr<c10d::Store> store;  // the same for all epochs; null if there is none
  BackendOptions options;                 // with the epoch of the current group
  std::vector<std::string> names;         // by rank; a process keeps its name through all epochs
  // By rank: its rank in the previous group, -1 for a newcomer. Empty in the first group.
  std::vector<int> former;
  bool through_mpi = false;  // the ranks met without a store
  int job_rank = -1;         // this process's rank by the launcher; -1: any
  // The ranks have begun to form so many groups over `store` before this one. -1: unknown to a
  // newcomer.
  int number = 0;
  // By epoch: keys of this process that are still in the store.
  std::map<std::uint32_t, std::shared_ptr<WrittenKeys>> written = {};
};

// Where the ranks of this group meet: `store`, or a part of it for a later group, since the keys of
// the first meeting are still there.
c10::intrusive_ptr<c10d::Store> place_of_group(int number,
                                               const c10::intrusive_ptr<c10d::Store>& store);
// form_group() at that place. regroup() and newcomers use `store`. Rank 0 leaves the texts of the
// job in both.
Group form_group_number(int number, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                        const BackendOptions& options);
// Group::regroup().
Group regroup(const Group& group, const RegroupData& regroup_data, const RegroupOptions& options);

}  // namespace internal
}  // namespace weft::comm
