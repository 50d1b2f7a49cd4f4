// The replicated log in memory: entries after a base, and the newest snapshot, which holds the
// state at or after the base.
//
//   snapshot.index            last()
//        │  ┌─ base + 1 … ─┐   │
//   ─────┼──┼──────────────┼───┘      entries up to the snapshot remain for slow members
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/store/internal/configuration.h"

namespace weft::store::internal {

struct LogEntry {
  enum class Kind : std::uint8_t { kNothing, kCommand, kConfiguration };
  Term term = 0;
  Kind kind = Kind::kNothing;
  std::string data;  // an encoded Request or Configuration
  bool operator==(const LogEntry&) const = default;
};

struct Snapshot {
  Index index = 0;  // last entry that it includes
  Term term = 0;    // of that entry
  Configuration configuration;
  std::string state;
};
std::string encode(const Snapshot& snapshot);
// Throws Error(kCorrupt).
Snapshot decode_snapshot(std::string_view bytes);

class Log {
 public:
  // Empty, after the snapshot.
  explicit Log(Snapshot snapshot);

  Index base() const { return base_; }
  Index last() const { return base_ + entries_.size(); }
  Term last_term() const { return term_at(last()); }
  const Snapshot& snapshot() const { return *snapshot_; }

  bool has(Index index) const { return index > base_ && index <= last(); }
  // Term of an entry from base() to last().
  Term term_at(Index index) const;
  const LogEntry& at(Index index) const;
  // Entries from `from` on: at least one, then as many as fit into max_bytes.
  std::vector<LogEntry> slice(Index from, std::size_t max_bytes) const;

  // The newest configuration in the log, and the index of its entry.
  const Configuration& configuration() const { return configurations_.back().second; }
  Index configuration_index() const { return configurations_.back().first; }
  // The newest configuration up to this entry.
  const Configuration& configuration_at(Index index) const;

  void append(LogEntry entry);
  // Removes the entries from `from` on.
  void truncate(Index from);
  // Takes a snapshot of this log's own state, and drops all but the last `keep` entries before it.
  void compact(Snapshot snapshot, Index keep);
  // Continues from another log's state. Drops all entries.
  void install(Snapshot snapshot);

 private:
  Index base_ = 0;
  Term base_term_ = 0;
  std::deque<LogEntry> entries_;  // base_ + 1 …
  std::shared_ptr<const Snapshot> snapshot_;
  std::vector<std::pair<Index, Configuration>> configurations_;  // by index; first: the snapshot's
};

}  // namespace weft::store::internal
