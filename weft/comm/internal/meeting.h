// How ranks without a connection find each other: through a store, where each rank leaves a string
// for the others, or through MPI.
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
#include "weft/net/rank_names.h"

namespace c10d {
class Store;
}

namespace weft::comm::internal {

// Key under which a launcher stores the number of a rank that has ended, for the ranks that wait
// for it.
inline constexpr const char* kLostKey = "lost";

// Key under which a rank that cannot join leaves its number and the reason, for the ranks that wait
// for it.
inline constexpr const char* kFailedKey = "failed";

// The participants: all ranks of the group, or some of them under a name of their own.
struct Party {
  int rank, size;  // of the whole group
  std::chrono::milliseconds timeout;
  std::vector<int> members = {};  // empty: all
  std::string name = "";  // one word; parties with different names do not see each other's keys
  // Returns the lost rank of the party, if any. Throws if the ranks cannot meet for another reason.
  // Empty: the launcher's entry in the store tells it.
  std::function<std::optional<int>()> lost = {};
  // In the positions of ranks that wait. nullopt: they do not name the awaited rank, which may be
  // slow to begin.
  std::optional<net::RankNames> names = {};
};

// An exchange over `store` among the party's members, in their order; each call uses a new round of
// keys. Throws kBadConfig if ranks have different world sizes, kPeerLost for a rank that the
// launcher has seen end or if the store is gone, and kTimeout for a rank that does not join. One
// thread uses `store`.
net::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store, Party party);

// Tells the other ranks that `rank` does not join because of `error`: their waits over `store` end
// with kAborted. Never throws.
void tell_failure(c10d::Store& store, int rank, const std::exception& error) noexcept;
// True if the other ranks do not find the error themselves: it names no other rank.
bool is_own(const std::exception& error) noexcept;

// The rank that a launcher has seen end, if any. None if the store is gone.
std::optional<int> lost_rank(c10d::Store& store);

// Converts `error`, which a store threw, into kPeerLost: the process that hosts the store has
// ended.
Error store_gone(const std::exception& error, const Error::Context& context);

// The error of rank `rank`, which has waited for `peer` until its timeout.
Error not_joined(int rank, int peer, std::chrono::milliseconds timeout);

// 0 … size - 1.
std::vector<int> all_ranks(int size);

// Communication among the ranks of a group while it forms. Used by one thread.
struct Forming {
  int rank = 0, size = 1;
  net::Exchange exchange;  // among all of them
  // The same among `members` (ascending), each of which calls this. `name` separates their messages
  // from those of other parties.
  std::function<net::Exchange(const std::vector<int>& members, const std::string& name)> among;
  // The rank that is known to have ended. Throws kAborted if a rank cannot join, and kPeerLost if
  // the store is gone.
  std::function<std::optional<int>()> lost_peer;
  bool over_mpi = false;  // then MPI also connects the hosts
};

// Uses a store that all ranks can reach; null for a group of one. `party` has all ranks of the
// group.
Forming meet_at(c10::intrusive_ptr<c10d::Store> store, Party party);

// Converts a rank of the whole group into a rank of the group of `members`.
std::optional<int> place_among(const std::vector<int>& ranks, std::optional<int> rank);

}  // namespace weft::comm::internal
