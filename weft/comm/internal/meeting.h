// How ranks that have no connection yet find each other: through a store, where each leaves a
// string for the others, or through MPI.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/net/memory/host.h"

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
  std::string name = "";  // one word; parties with different names do not see each other's keys
  // Of the party's ranks; empty: what the launcher left in the store.
  std::function<std::optional<int>()> lost = {};
};

// An exchange over `store` among the party's members, in their order, a round of keys each time. It
// throws kBadConfig where ranks believe in different world sizes, kPeerLost for a rank that the
// launcher has seen end and where the store is gone, kTimeout for a rank that does not come.
// `store` is used by one thread.
net::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store, Party party);

// The rank that a launcher has seen end, if any. The store may be gone: then nobody is known to
// have.
std::optional<int> lost_rank(c10d::Store& store);

// What `error`, which a store threw, means: kPeerLost, since whoever holds the store has ended.
Error store_gone(const std::exception& error, const Error::Context& context);

// 0 … size - 1.
std::vector<int> all_ranks(int size);

// What the ranks of a group can say to each other while it forms. Used by one thread.
struct Forming {
  int rank = 0, size = 1;
  net::Exchange exchange;  // among all of them
  // Among `members`, ascending, each of which calls this; `name` tells their words from those of
  // other parties.
  std::function<net::Exchange(const std::vector<int>& members, const std::string& name)> among;
  std::function<std::optional<int>()> lost_peer;  // who is known to have ended
  bool over_mpi = false;                          // so that MPI joins their hosts too
};

// Over a store that all of them reach. Null for a group of one. `lost` as in Party.
Forming meet_at(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                std::chrono::milliseconds timeout, std::function<std::optional<int>()> lost = {});

// A rank of the whole as a rank of a group of some of them.
std::optional<int> place_among(const std::vector<int>& ranks, std::optional<int> rank);

}  // namespace weft::comm::internal
