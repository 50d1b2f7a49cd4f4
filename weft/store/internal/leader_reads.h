// Reads that see every change acknowledged before them. The leader notes its commit index, asks a
// quorum in a round whether it still leads (all reads since the last round together), and then lets
// the reader answer from any state at or after that index.
#pragma once

#include <algorithm>
#include <vector>

#include "weft/store/internal/configuration.h"

namespace weft::store::internal {

// The reads that wait for a leader. Invariant: those with a round come first, in order of rounds.
class LeaderReads {
 public:
  struct Read {
    MemberId from;
    std::uint64_t number;  // chosen by the asker
    std::uint64_t round;   // of this leader; 0: not begun
    Index index;           // apply up to here, then answer the read
  };

  void add(MemberId from, std::uint64_t number) { reads_.push_back({from, number, 0, 0}); }
  void clear() { reads_.clear(); }
  bool has_new() const { return !reads_.empty() && reads_.back().round == 0; }
  // The reads that have come belong to this round, and see this index.
  void begin(std::uint64_t round, Index index) {
    for (Read& read : reads_) {
      if (read.round == 0) read.round = round, read.index = index;
    }
  }
  // The reads up to this round, which a quorum has confirmed.
  std::vector<Read> take(std::uint64_t confirmed) {
    const auto end = std::find_if(reads_.begin(), reads_.end(), [&](const Read& read) {
      return read.round == 0 || read.round > confirmed;
    });
    std::vector<Read> taken(reads_.begin(), end);
    reads_.erase(reads_.begin(), end);
    return taken;
  }

 private:
  std::vector<Read> reads_;
};

}  // namespace weft::store::internal
