// Decides which change of a shard's chain a server proposes. Pure functions.
#pragma once

#include <optional>

#include "weft/ps/internal/replica.h"

namespace weft::ps::internal {

// Number of servers that have a shard.
inline constexpr std::size_t kCopies = 2;

struct Place {
  bool founds = false;  // this server founds the shard
  // Its neighbor in the chain has given no sign of life for too long.
  bool previous_is_silent = false;
  bool next_is_silent = false;
};

// The view that `replica`, which has adopted `view` if it has a place there, wants next: the first
// one of the shard, one in which it joins, one in which the joining server is a member, or one
// without a lost server. None if it is content.
std::optional<View> next_view(const Replica& replica, const View& view, const Place& place);

// True if the state of the shard is lost: the only member was an earlier process of this server.
bool is_lost(const Replica& replica, const View& view);

}  // namespace weft::ps::internal
