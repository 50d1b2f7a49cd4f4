// The newest state that the ranks of a group still hold.
//
//   next = world.regroup({.size = world.size(), .keep_ranks = true});
//   elastic::use_newest_state(next, &copies, [&](std::optional<elastic::Recovered> state, …) {
//     model.load_shards(state->reader);          // a newcomer passes nullptr for the copies
//   });
//
//   rank 0: copies ──┐                      ┌── request: ranges of bytes ── rank 1, a newcomer:
//   rank 2: copies ──┴─ a thread that serves ──> only what its own slices need ──> its model
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "weft/checkpoint/reader.h"
#include "weft/comm/group.h"
#include "weft/elastic/state_copies.h"

namespace weft::elastic {

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
// of its own model. `held`: null on a newcomer. Returns when no rank reads another's copies any
// more. `use` may be collective, and one thread at a time uses the reader. Collective. Throws as
// `use` and Group's operations do.
void use_newest_state(const Group& group, const StateCopies* held, const UseState& use);

}  // namespace weft::elastic
