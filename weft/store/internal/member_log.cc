#include "weft/store/internal/member_log.h"

#include <algorithm>

namespace weft::store::internal {

void MemberLog::append(LogEntry entry) {
  log_.append(std::move(entry));
  note_unsaved(log_.last());
}

void MemberLog::note_unsaved(Index index) {
  unsaved_.from = unsaved_.from == 0 ? index : std::min(unsaved_.from, index);
}

MemberLog::Match MemberLog::accept(const Message& append) {
  const Index before = append.index;
  // Committed entries are the same everywhere.
  if (before >= commit_ && (before > log_.last() || log_.term_at(before) != append.log_term)) {
    Index index = std::min(log_.last(), before - 1);
    while (index > commit_ && log_.term_at(index) > append.log_term) --index;
    return {false, index};
  }
  add(append);
  const Index index = std::max(commit_, std::min(log_.last(), before + append.entries.size()));
  commit_to(std::min(append.commit, index));
  return {true, index};
}

// Adds the entries after the commit index. An entry of another term replaces the log from there on.
void MemberLog::add(const Message& append) {
  Index index = append.index;
  for (const LogEntry& entry : append.entries) {
    if (++index <= commit_) continue;
    if (log_.has(index)) {
      if (log_.term_at(index) == entry.term) continue;
      log_.truncate(index);
    }
    log_.append(entry);
    note_unsaved(index);
  }
}

void MemberLog::install(Snapshot snapshot) {
  log_.install(std::move(snapshot));
  commit_ = log_.base();
  unsaved_.snapshot = true;
}

void MemberLog::compact(Snapshot snapshot) {
  constexpr Index kKeep = 1024;  // for members that are a little behind
  log_.compact(std::move(snapshot), kKeep);
}

}  // namespace weft::store::internal
