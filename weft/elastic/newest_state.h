// The newest state that the ranks of a group still hold.
//
//   next = world.regroup({.size = world.size(), .keep_ranks = true});
//   elastic::use_newest_state(next, brought, [&](std::optional<elastic::Recovered> state, …) {
//     model.load_shards(state->reader);          // a newcomer passes nullptr for the copies
//   });
//
//   rank 0: copies ──┐                      ┌── request: ranges of bytes ── rank 1, a newcomer:
//   rank 2: copies ──┴─ a thread that serves ──> only what its own slices need ──> its model
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/comm/group.h"
#include "weft/elastic/state_copies.h"

namespace weft::elastic {

// The copies that a rank brings into a new group. A newcomer brings none.
struct Brought {
  // Of one incarnation of the group each.
  std::vector<std::shared_ptr<const StateCopies>> copies = {};
  std::vector<StateCopies::Copy> handed_over = {};  // see hand_over()
  std::vector<StateCopies::Copy> readable() const;
};

struct Recovered {
  std::int64_t step = 0;
  checkpoint::Reader reader;  // The whole state. Valid until `use` returns.
};
// `missing`: what the newest state lacks, if there is no whole one: "the parts of ranks 1 of step
// 40". Empty if there are no copies.
using UseState = std::function<void(std::optional<Recovered> state, const std::string& missing)>;

// Calls `use` on all ranks with the newest whole state of which they have copies; without one, with
// nullopt. A rank reads the parts that it cannot reach from one that can, while `use` runs: the
// bytes that the reader is asked for, at most kFetchBytes at once. So it needs no memory but that
// of its own model. Returns when no rank reads another's copies any more. `use` may be collective,
// and one thread at a time uses the reader. Collective. Throws as `use` and Group's operations do.
void use_newest_state(const Group& group, const Brought& brought, const UseState& use);

// Before the ranks from `staying` on leave: sends the parts of the newest whole state that only
// they can read to ranks that stay, which keep them in `brought`. Needs memory for these parts.
// Collective. Throws as Group's operations do.
void hand_over(const Group& group, int staying, Brought& brought);

}  // namespace weft::elastic
