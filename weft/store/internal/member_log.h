// The log of a member of the consensus: its entries, up to where they are committed, and which part
// of them is not in the journal yet.
//
// Invariant: the commit index never goes back, entries up to it are never replaced, and
// take_unsaved() tells of each change of the entries.
#pragma once

#include <algorithm>
#include <utility>

#include "weft/store/internal/message.h"

namespace weft::store::internal {

class MemberLog {
 public:
  struct Unsaved {
    bool snapshot = false;  // installed: write everything again
    Index from = 0;         // entries from here on have changed; 0: none
  };
  // Answer to entries of the leader.
  struct Match {
    bool agrees = false;
    Index index = 0;  // the logs agree up to here; else: the leader should continue after it
  };

  explicit MemberLog(Log log) : log_(std::move(log)), commit_(log_.snapshot().index) {}

  const Log& log() const { return log_; }
  Index commit() const { return commit_; }
  const Configuration& configuration() const { return log_.configuration(); }
  bool configuration_is_committed() const { return log_.configuration_index() <= commit_; }
  // True if the entry is in the log, or is covered by what is committed.
  bool includes(Index index, Term term) const {
    return index <= commit_ || (log_.has(index) && log_.term_at(index) == term);
  }
  // True if a log that ends with this entry is not older.
  bool is_covered_by(Index last, Term last_term) const {
    return last_term != log_.last_term() ? last_term > log_.last_term() : last >= log_.last();
  }

  void append(LogEntry entry);
  // Adds the entries of the leader's kAppend message, and commits what it has committed.
  Match accept(const Message& append);
  // Commits up to this entry, which the log includes.
  void commit_to(Index index) { commit_ = std::max(commit_, index); }
  // Replaces all entries by a snapshot of the leader.
  void install(Snapshot snapshot);
  // Takes a snapshot of the state at an index up to commit().
  void compact(Snapshot snapshot);
  Unsaved take_unsaved() { return std::exchange(unsaved_, {}); }

 private:
  void add(const Message& append);
  void note_unsaved(Index index);

  Log log_;
  Index commit_;
  Unsaved unsaved_;
};

}  // namespace weft::store::internal
