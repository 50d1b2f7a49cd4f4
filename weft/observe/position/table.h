// The positions of all ranks of a page as a table for people, and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/observe/position/rank_page.h"
#include "weft/observe/position/thread_state.h"

namespace weft::observe {

// What is known of a rank at one look.
struct RankView {
  int rank = 0;          // Rank of the job.
  std::int32_t pid = 0;  // 0: no process has written the record.
  bool ended = false;    // Its process has ended.
  Standing standing;
  std::uint64_t heartbeat = 0;
  // Of its threads: the wait for a known peer that has lasted longest, else the longest wait, else
  // an operation that runs, else the last one.
  Operation operation;
  std::optional<ThreadState> thread;  // Of the thread that drives the steps, where it was read.
};

// One view for each record with a rank, in order.
std::vector<RankView> views_of(const RankPage& page);
// Reads the state of the thread that drives the steps, and whether its process has ended.
void read_thread(RankView& view);

// "all_reduce 1234 of tp (4.0 KiB)"; "-" without an operation.
std::string to_string(const Operation& operation);

// A header and a line for each rank. `now`: CLOCK_MONOTONIC in nanoseconds.
std::string table_of(std::span<const RankView> views, std::int64_t now);
// {"ranks": [{"rank": 0, "pid": 4242, "step": 7, "phase": "backward", …}, …]}
nlohmann::ordered_json json_of(std::span<const RankView> views, std::int64_t now);

}  // namespace weft::observe
