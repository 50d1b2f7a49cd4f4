// What the launcher says of ranks that hang. Pure functions.
#pragma once

#include <string>

#include "weft/launch/hang_watch.h"

namespace weft::launch::internal {

// One line, without a newline: the rank, how it hangs, since when, and who waits for it in which
// operation. `view`: of the rank, with its thread; not used for kElsewhere.
std::string line_of(const Hang& hang, const observe::RankView& view);
// "rank 1 goes on after 3.2 s".
std::string resumed_line_of(const Hang& hang);

// The files of one report in the run folder: the lines and the table, and all of it as JSON.
struct HangFiles {
  std::string text, json;
};
HangFiles files_of(const std::vector<Hang>& hangs, const std::vector<observe::RankView>& views,
                   Nanos now);

// True if the hang calls for a table of all ranks.
inline bool needs_table(const Hang& hang) {
  return hang.how != Hang::How::kSlow && hang.how != Hang::How::kElsewhere;
}

}  // namespace weft::launch::internal
