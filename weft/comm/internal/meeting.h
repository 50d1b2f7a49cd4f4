// How ranks that have no connection yet find each other: through the store, where each leaves a string for the others.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "weft/net/host.h"

namespace c10d {
class Store;
}

namespace weft::comm::internal {

// Under it a launcher leaves the number of a rank that has ended, for those that wait for it.
inline constexpr const char* kLostKey = "lost";

// Who meets: all ranks of the group, or some of them under a name of their own.
struct Party {
  int rank, size;  // of the whole group
  std::chrono::milliseconds timeout;
  std::vector<int> members = {};  // empty: all
  std::string name = "";          // one word; parties with different names do not see each other's keys
};

// An exchange over `store` among the party's members, in their order, a round of keys each time. It throws kBadConfig where ranks believe
// in different world sizes, kPeerLost for a rank that the launcher has seen end and where the store is gone, kTimeout for a rank that does
// not come. `store` is used by one thread.
net::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store, Party party);

// The rank that a launcher has seen end, if any. The store may be gone: then nobody is known to have.
std::optional<int> lost_rank(c10d::Store& store);

}  // namespace weft::comm::internal
